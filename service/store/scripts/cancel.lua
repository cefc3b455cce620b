-- Withdraw one caller's interest; the job ends when nobody is left. ARGV: id, owner, keep.
-- -> false when there is no such job of this owner, else its view.
local id, owner = ARGV[1], ARGV[2]
local key = JOB .. id
local f = redis.call('HMGET', key, 'state', 'by:' .. owner, 'queue', 'high')
if not f[1] or not f[2] then return false end
if f[1] ~= 'queued' and f[1] ~= 'running' then return view(id) end
if f[2] == '1' then
  redis.call('PERSIST', key)
  redis.call('HSET', key, 'by:' .. owner, '0')
  if redis.call('HINCRBY', key, 'interest', -1) <= 0 then
    if f[1] == 'queued' then
      redis.call('ZREM', ready_key(f[3], f[4]), id)
      close(id, 'cancelled', now(), ARGV[3])
    else
      redis.call('HSET', key, 'cancel', '1')
    end
  end
end
return view(id)
