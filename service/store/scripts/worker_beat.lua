-- A worker says that it lives. ARGV: name, ttl (ms; 0 says goodbye), facts (JSON), queue...
local name, ttl = ARGV[1], tonumber(ARGV[2])
local at = now()
for i = 4, #ARGV do
  local index = WORKERS .. ARGV[i]
  -- First, for it frees memory: a full server must not take a worker for gone.
  redis.call('ZREMRANGEBYSCORE', index, '-inf', int(at))
  redis.call('HSET', STATS, SEEN .. ARGV[i], int(at))
  if ttl > 0 then redis.call('ZADD', index, int(at + ttl * 1000), name) else redis.call('ZREM', index, name) end
end
if ttl > 0 then redis.call('SET', WORKER .. name, ARGV[3], 'PX', ttl) else redis.call('DEL', WORKER .. name) end
return 1
