-- Read one job. ARGV: id, owner ('' asks without a check of ownership).
-- -> false when there is none, or when it isn't that owner's.
if ARGV[2] ~= '' and redis.call('HEXISTS', JOB .. ARGV[1], 'by:' .. ARGV[2]) == 0 then return false end
return view(ARGV[1])
