-- KEYS: key, n. ARGV: tight, ttl, value, the version that is expected or nothing.
-- The new version, or nothing if the key has another one than expected.
local function tick(key)
  local now = redis.call('TIME')
  local number = math.max(now[1] * 1000000 + now[2], (tonumber(redis.call('GET', key)) or 0) + 1)
  local text = string.format('%.0f', number)
  redis.call('SET', key, text)
  return text
end

local version = redis.call('HGET', KEYS[1], 'n') or '0'
if ARGV[4] ~= '' and ARGV[4] ~= version then return false end
if ARGV[1] ~= '' and version == '0' then return redis.error_reply('OOM callers have no more room') end
local new = tick(KEYS[2])
redis.call('HSET', KEYS[1], 'v', ARGV[3], 'n', new)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return new
