-- A job whose hash says it waits or runs must stand in its queue or hold a lease. Scripts are
-- atomic, so only a damaged or hand-edited store breaks this; such a job waits again. ARGV: ids.
-- -> ids of the jobs that had to be mended
local mended = {}
for _, id in ipairs(ARGV) do
  local f = redis.call('HMGET', JOB .. id, 'state', 'queue', 'high', 'request')
  local lives = f[1] == 'queued' or f[1] == 'running'
  if lives and f[2] and f[4]
      and not (f[1] == 'queued' and redis.call('ZSCORE', ready_key(f[2], f[3]), id))
      and not (f[1] == 'running' and redis.call('ZSCORE', LEASED .. f[2], id)) then
    count('mended')
    enqueue(id)
    mended[#mended + 1] = id
  end
end
return mended
