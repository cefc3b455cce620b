-- Renew a lease, report progress, learn of a cancel. ARGV: id, token, lease (µs), progress, message.
-- -> 'lost' | 'cancel' | 'ok'
local key = JOB .. ARGV[1]
local f = redis.call('HMGET', key, 'token', 'state', 'queue', 'progress', 'message', 'cancel')
if f[1] ~= ARGV[2] or f[2] ~= 'running' then return 'lost' end
-- A running job has no TTL, so this changes nothing; but a script whose first write frees rather
-- than takes memory goes through on a full server, and a lease must not be lost to that.
redis.call('PERSIST', key)
redis.call('ZADD', LEASED .. f[3], int(now() + tonumber(ARGV[3])), ARGV[1])
if f[4] ~= ARGV[4] or f[5] ~= ARGV[5] then
  redis.call('HSET', key, 'progress', ARGV[4], 'message', ARGV[5])
  announce(ARGV[1])
end
if f[6] then return 'cancel' end
return 'ok'
