-- Keep a profile from eviction, or let it go again. ARGV: id, '1' or '0'. -> 1 when there is one.
local pkey = PROFILE .. ARGV[1]
if redis.call('EXISTS', pkey) == 0 then return 0 end
redis.call('HSET', pkey, 'pinned', ARGV[2])
return 1
