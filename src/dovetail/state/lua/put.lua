-- KEYS: key, n. ARGV: is_tight, ttl, value, the version that is expected or nothing.
-- The new version, or nothing if the key has another one than expected.
local version = redis.call('HGET', KEYS[1], 'n') or '0'
if ARGV[4] ~= '' and ARGV[4] ~= version then return false end
if ARGV[1] ~= '' and (version == '0' or #ARGV[3] > redis.call('HSTRLEN', KEYS[1], 'v')) then
  return redis.error_reply('OOM callers have no more room')
end
local new = tick(KEYS[2])
redis.call('HSET', KEYS[1], 'v', ARGV[3], 'n', new)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return new
