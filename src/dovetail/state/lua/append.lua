-- KEYS: log. ARGV: is_tight, ttl, data, the id that is expected or nothing, keep, channel.
-- The record's id, or nothing if another one than expected is the newest.
local newest = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
if ARGV[4] ~= '' and ARGV[4] ~= (newest and string.sub(newest[1], 3) or '0') then return false end
if ARGV[1] ~= '' and not newest then return redis.error_reply('OOM callers have no more room') end
local id = redis.call('XADD', KEYS[1], 'MAXLEN', '=', ARGV[5], '0-*', '', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('PUBLISH', ARGV[6], '')
return string.sub(id, 3)
