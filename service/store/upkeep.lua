-- Upkeep of the queue: what nobody asks for, and what keeps records and indexes true. Calls and
-- answers as in queue.lua.
--
-- Names in capitals are the keys and bounds of keys.py, which is put in front of this text:
--   JOB .. id                          hash    one job (see queue.lua)
--   READY .. lane [.. HIGH]            zset    waiting jobs by time of creation
--   LEASED .. queue                    zset    running jobs by the end of their lease
--   LANES .. queue                     set     the lanes of a queue, by what they need
--   WORKERS .. queue or lane           zset    its workers by when they count as gone
--   ENDED .. state                     zset    finished jobs by the time of their end
--   PROFILE .. id .. JOBS_OF           set     jobs that ended in this profile
--   EXPERIMENT .. id                   hash    the result of one experiment
--   EXPERIMENTS                        zset    ids of results by time
--   HOUSEKEEPER                        string  held by the worker that reconciles; has a TTL
--   STATS                              hash    when each queue and lane last had a worker

local function now()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local function int(number) return string.format('%.0f', number) end

-- Every queue and lane.
local function names()
  local found = {}
  for _, queue in ipairs(QUEUES) do
    found[#found + 1] = queue
    for _, needs in ipairs(redis.call('SMEMBERS', LANES .. queue)) do
      found[#found + 1] = queue .. ':' .. needs
    end
  end
  return found
end

-- Leases that end later than one lease from now end then.
local function clamp_leases(queue, at, lease)
  local after = '(' .. int(at + lease)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', LEASED .. queue, after, '+inf', 'LIMIT', 0, 1000)) do
    local own = tonumber(redis.call('HGET', JOB .. id, 'lease') or lease)
    if tonumber(redis.call('ZSCORE', LEASED .. queue, id)) > at + own then
      redis.call('ZADD', LEASED .. queue, int(at + own), id)
    end
  end
end

-- Jobs that were created later than now were created now, in their order: else everything that comes
-- until then would stand in front of them.
local function clamp_waiting(ready, at)
  local late = redis.call('ZRANGEBYSCORE', ready, '(' .. int(at), '+inf', 'LIMIT', 0, 1000)
  for i, id in ipairs(late) do
    local created = int(at - #late + i)
    redis.call('HSET', JOB .. id, 'created', created)
    redis.call('ZADD', ready, created, id)
  end
end

local operations = {}

-- The server's clock may have been set back. Then what was written before lies in the future, and
-- would hold for as long. given: lease (µs), for jobs that do not say theirs. -> 'ok'
function operations.settle(given)
  local at = now()
  for _, name in ipairs(names()) do
    -- First, because they free memory: a full server lets the others follow.
    redis.call('ZREMRANGEBYSCORE', WORKERS .. name, '-inf', int(at))
    redis.call('ZREMRANGEBYSCORE', WORKERS .. name, '(' .. int(at + ANNOUNCED_US), '+inf')
  end
  for _, queue in ipairs(QUEUES) do clamp_leases(queue, at, given.lease) end
  for _, name in ipairs(names()) do
    if tonumber(redis.call('HGET', STATS, LAST_SEEN .. name) or 0) > at then
      redis.call('HSET', STATS, LAST_SEEN .. name, int(at))
    end
    for _, high in ipairs({'', HIGH}) do clamp_waiting(READY .. name .. high, at) end
  end
  if redis.call('PTTL', HOUSEKEEPER) > HOUSEKEEPER_MS then redis.call('DEL', HOUSEKEEPER) end
  return 'ok'
end

-- Take away the records that are over, with their ids in every index, and the ids of records that
-- are gone. given: state, skip (how many of the oldest to leave alone), limit.
-- -> {how many were looked at, how many of these stay}
function operations.forget(given)
  local index, kept = ENDED .. given.state, 0
  local found = redis.call('ZRANGE', index, given.skip, given.skip + given.limit - 1)
  for _, id in ipairs(found) do
    local left = redis.call('PTTL', JOB .. id)
    if left == -1 or left > RECORD_GRACE_MS then
      kept = kept + 1
    else
      local profile = redis.call('HGET', JOB .. id, 'profile')
      if profile then redis.call('SREM', PROFILE .. profile .. JOBS_OF, id) end
      redis.call('DEL', JOB .. id, EXPERIMENT .. id)
      redis.call('ZREM', EXPERIMENTS, id)
      redis.call('ZREM', index, id)
    end
  end
  return {#found, kept}
end

return operations[ARGV[1]](cjson.decode(ARGV[2]), unpack(ARGV, 3))
