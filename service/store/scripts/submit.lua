-- Accept a job, once. ARGV: id, request, queue, high, pinned, owner, max_queued, resolve_ttl (µs), trace,
-- cost, private.
-- -> {'full', mean run, workers}, or {'kept' | 'created', view}
local id, request, queue, high, pinned, owner = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local key, at = JOB .. id, now()
local f = redis.call('HMGET', key, 'state', 'profile', 'finished', 'high', 'queue', 'by:' .. owner)
local state = f[1]

local function join()
  if f[6] ~= '1' then
    redis.call('HINCRBY', key, 'interest', 1)
    redis.call('HSET', key, 'by:' .. owner, '1')
  end
  redis.call('HDEL', key, 'cancel')
end

if state == 'queued' or state == 'running' then
  join()
  if state == 'queued' and high == '1' and f[4] ~= '1' then
    redis.call('ZREM', ready_key(f[5], '0'), id)
    redis.call('HSET', key, 'high', '1')
    redis.call('ZADD', ready_key(f[5], '1'), redis.call('HGET', key, 'created'), id)
  end
  return {'kept', view(id)}
end
if state == 'done' and redis.call('EXISTS', PROFILE .. f[2]) == 1
    and (pinned == '1' or at - tonumber(f[3]) < tonumber(ARGV[8])) then
  -- A server out of memory refuses the note of who may read this; the answer stands without it.
  if not f[6] then redis.pcall('HSET', key, 'by:' .. owner, '0') end
  return {'kept', view(id)}
end

local waiting = redis.call('ZCARD', ready_key(queue, '0')) + redis.call('ZCARD', ready_key(queue, '1'))
if waiting >= tonumber(ARGV[7]) then
  return {'full', redis.call('HGET', STATS, 'mean_run:' .. queue),
    int(redis.call('ZCOUNT', WORKERS .. queue, int(at), '+inf'))}
end

-- HSET comes first: a server out of memory refuses it, and then nothing is written at all.
redis.call('HSET', key, 'state', 'queued', 'queue', queue, 'high', high, 'pinned', pinned, 'request', request,
  'trace', ARGV[9], 'cost', ARGV[10], 'private', ARGV[11], 'attempts', '0', 'progress', '0', 'message', '', 'created', int(at))
if state then redis.call('ZREM', ENDED .. state, id) end
redis.call('HDEL', key, 'token', 'worker', 'cancel', 'started', 'finished', 'code', 'detail', 'retryable', 'field', 'profile')
-- Earlier callers may still read the job, but only this one wants it now.
for _, field in ipairs(redis.call('HKEYS', key)) do
  if string.sub(field, 1, 3) == 'by:' then redis.call('HSET', key, field, '0') end
end
redis.call('HSET', key, 'by:' .. owner, '1', 'interest', '1')
redis.call('PERSIST', key)
enqueue(id)
count('submitted')
return {'created', view(id)}
