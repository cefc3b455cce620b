-- Leases that ran out: the job waits again, or fails when that happened too often. Then, jobs whose
-- kind of worker is gone.
-- ARGV: max_attempts, keep.
-- -> {what became of it, id, trace, worker, attempts} of each (at most 100 per queue).
local at, found = now(), {}
for _, queue in ipairs(QUEUES) do
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', LEASED .. queue, '-inf', int(at), 'LIMIT', 0, 100)) do
    redis.call('ZREM', LEASED .. queue, id)
    local key = JOB .. id
    local f = redis.call('HMGET', key, 'state', 'attempts', 'worker', 'cancel', 'trace')
    if f[1] == 'running' then
      local fate = 'queued'
      count('lost_leases')
      if f[4] then
        fate = 'cancelled'
        close(id, 'cancelled', at, ARGV[2])
      elseif tonumber(f[2]) >= tonumber(ARGV[1]) then
        fate = 'failed'
        local detail = 'lease expired ' .. f[2] .. ' times; last worker ' .. (f[3] or 'unknown')
        redis.call('XADD', DEAD, 'MAXLEN', DEAD_LETTERS, '*', 'job', id, 'code', 'worker_lost',
          'detail', detail, 'worker', f[3] or '', 'attempts', f[2])
        count('dead')
        fail(id, at, ARGV[2], 'worker_lost', detail, '1')
      else
        count('redeliveries')
        enqueue(id)
      end
      found[#found + 1] = {fate, id, f[5] or '', f[3] or 'unknown', f[2]}
    end
  end
end
-- A job was queued for a kind of worker that is gone for good: those that live take it. Gone for good
-- is who was not seen for long: the only worker of a queue may just be starting anew.
for _, queue in ipairs(QUEUES) do
  local seen = tonumber(redis.call('HGET', STATS, SEEN .. queue) or 0)
  if at - seen > STRANDED_US and redis.call('ZCOUNT', WORKERS .. queue, int(at), '+inf') == 0 then
    for _, other in ipairs(QUEUES) do
      if other ~= queue and redis.call('ZCOUNT', WORKERS .. other, int(at), '+inf') > 0 then
        for _, high in ipairs({'1', '0'}) do
          local ready = ready_key(queue, high)
          for _, id in ipairs(redis.call('ZRANGEBYSCORE', ready, '-inf', int(at - STRANDED_US), 'LIMIT', 0, 100)) do
            redis.call('ZREM', ready, id)
            redis.call('HSET', JOB .. id, 'queue', other)
            enqueue(id)
          end
        end
      end
    end
  end
end
return found
