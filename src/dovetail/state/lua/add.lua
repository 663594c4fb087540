-- KEYS: key, n. ARGV: is_tight, ttl, summand.
-- The total; "" if that is too far; nothing if the key holds no number. A counter of Redis could go one further down
-- than up, and must not.
local version = redis.call('HGET', KEYS[1], 'n') or '0'
if ARGV[1] ~= '' and version == '0' then return redis.error_reply('OOM callers have no more room') end
local new = tick(KEYS[2])
if version == '0' then redis.call('HSET', KEYS[1], 'v', '0') end
local sum = redis.pcall('HINCRBY', KEYS[1], 'v', ARGV[3])
if type(sum) == 'table' then return string.find(sum.err, 'overflow', 1, true) and '' or false end
local total = redis.call('HGET', KEYS[1], 'v')
if total == '-9223372036854775808' then
  redis.call('HINCRBY', KEYS[1], 'v', string.sub(ARGV[3], 2))
  return ''
end
redis.call('HSET', KEYS[1], 'n', new)
if version == '0' then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return total
