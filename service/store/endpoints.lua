-- Calls of endpoints: how many are under way, and when the next may start, for all workers together.
--
-- Call: ARGV[1] is the operation, ARGV[2] its named arguments as one JSON object. Names in capitals
-- are the keys of keys.py, which is put in front of this text:
--   CALLS .. name   zset     calls under way by when they count as lost
--   NEXT .. name    string   when the next call may start
--   HELD .. name    string   until when the server asked us to wait
-- Times are microseconds by the server's clock.

local function now()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local function int(number) return string.format('%.0f', number) end

local operations = {}

-- May a call start? given: name, token, most (calls at once), gap (µs between starts), lease (µs after
-- which a call counts as lost), again (µs until a caller who finds all places taken asks again).
-- -> 0: it has its place; else how long to wait (µs)
function operations.turn(given)
  local at, calls, next_key = now(), CALLS .. given.name, NEXT .. given.name
  local held = tonumber(redis.call('GET', HELD .. given.name) or 0)
  if held > at then return int(held - at) end
  redis.call('ZREMRANGEBYSCORE', calls, '-inf', int(at))
  if redis.call('ZCARD', calls) >= given.most then return int(given.again) end
  local start = tonumber(redis.call('GET', next_key) or 0)
  if given.gap > 0 and start > at then return int(start - at) end
  redis.call('ZADD', calls, int(at + given.lease), given.token)
  redis.call('PEXPIRE', calls, int(given.lease / 1000 + 1))
  if given.gap > 0 then
    redis.call('SET', next_key, int(at + given.gap), 'PX', int(given.gap / 1000 + 1))
  end
  return '0'
end

-- A call has ended. given: name, token. -> whether its place was still held
function operations.done(given)
  return redis.call('ZREM', CALLS .. given.name, given.token)
end

-- A job starts again: calls of its earlier starts have ended with their processes. given: name, owner.
-- -> how many places that frees
function operations.free(given)
  local freed, start = 0, given.owner .. '/'
  for _, token in ipairs(redis.call('ZRANGE', CALLS .. given.name, 0, -1)) do
    if string.sub(token, 1, #start) == start then
      freed = freed + redis.call('ZREM', CALLS .. given.name, token)
    end
  end
  return freed
end

-- The server asks us to wait: start no call for that long. given: name, wait (µs). -> 'ok'
function operations.hold(given)
  local key, until_ = HELD .. given.name, now() + given.wait
  if until_ > tonumber(redis.call('GET', key) or 0) then
    redis.call('SET', key, int(until_), 'PX', int(given.wait / 1000 + 1))
  end
  return 'ok'
end

return operations[ARGV[1]](cjson.decode(ARGV[2]), unpack(ARGV, 3))
