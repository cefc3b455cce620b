-- Take one job, and count the attempt before it runs. ARGV: queue, token, worker, lease (µs).
-- -> {id, request, attempt, trace}, or false when nothing waits.
local queue, token, worker, at = ARGV[1], ARGV[2], ARGV[3], now()
-- Asked again with the same token, for the answer was lost on its way: the same job, not another.
local last = redis.call('GET', CLAIM .. worker)
if last then
  local f = redis.call('HMGET', JOB .. last, 'state', 'token', 'request', 'attempts', 'trace')
  if f[1] == 'running' and f[2] == token then return {last, f[3], f[4], f[5] or ''} end
end
for _, ready in ipairs({ready_key(queue, '1'), ready_key(queue, '0')}) do
  local popped = redis.call('ZPOPMIN', ready)
  while #popped > 0 do
    local id = popped[1]
    local key = JOB .. id
    local f = redis.call('HMGET', key, 'state', 'request', 'trace', 'created')
    if f[1] == 'queued' and f[2] then
      local attempt = redis.call('HINCRBY', key, 'attempts', 1)
      redis.call('HSET', key, 'state', 'running', 'token', token, 'worker', worker, 'started', int(at))
      redis.call('SET', CLAIM .. worker, id, 'PX', int(tonumber(ARGV[4]) / 1000 + 1))
      redis.call('ZADD', LEASED .. queue, int(at + tonumber(ARGV[4])), id)
      if attempt == 1 then observe('wait', WAIT_BUCKETS, (at - tonumber(f[4])) / 1000000) end
      announce(id)
      return {id, f[2], int(attempt), f[3] or ''}
    end
    popped = redis.call('ZPOPMIN', ready)
  end
end
redis.call('DEL', WAKE .. queue)
return false
