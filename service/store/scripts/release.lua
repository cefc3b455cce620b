-- Give a job back: it can be claimed at once, and the attempt does not count. ARGV: id, token, keep.
-- -> 'ok' | 'lost'
local id = ARGV[1]
local key = JOB .. id
local f = redis.call('HMGET', key, 'token', 'state', 'queue', 'cancel')
if f[1] ~= ARGV[2] or f[2] ~= 'running' then return 'lost' end
redis.call('ZREM', LEASED .. f[3], id)
if f[4] then
  close(id, 'cancelled', now(), ARGV[3])
else
  redis.call('HINCRBY', key, 'attempts', -1)
  count('given_back')
  enqueue(id)
end
return 'ok'
