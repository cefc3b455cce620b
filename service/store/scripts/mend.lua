-- A job whose hash says it waits or runs must stand in its queue or hold a lease. Scripts are
-- atomic, so only a damaged or hand-edited store breaks this; such a job waits again. ARGV: id.
-- -> 1 when it had to be mended
local id = ARGV[1]
local f = redis.call('HMGET', JOB .. id, 'state', 'queue', 'high', 'request')
if f[1] == 'queued' and redis.call('ZSCORE', ready_key(f[2], f[3]), id) then return 0 end
if f[1] == 'running' and redis.call('ZSCORE', LEASED .. f[2], id) then return 0 end
if (f[1] ~= 'queued' and f[1] ~= 'running') or not f[4] then return 0 end
count('mended')
enqueue(id)
return 1
