-- Forget a profile. ARGV: id, job_ttl (ms). -> 1 when there was one.
local pid = ARGV[1]
local pkey = PROFILE .. pid
local f = redis.call('HMGET', pkey, 'model', 'size')
if not f[1] then return 0 end
redis.call('ZREM', PROFILES, pid)
redis.call('ZREM', PROFILES_USED, pid)
redis.call('ZREM', PROFILES_MODEL .. f[1], pid)
redis.call('DECRBY', PROFILES_BYTES, f[2])
-- The jobs that led here would be run again if asked for; their records go in due time.
for _, id in ipairs(redis.call('SMEMBERS', pkey .. JOBS_OF)) do
  if redis.call('HGET', JOB .. id, 'state') == 'done' then redis.call('PEXPIRE', JOB .. id, ARGV[2]) end
end
redis.call('DEL', pkey, pkey .. JOBS_OF)
return 1
