-- KEYS: log. ARGV: after, limit, bytes of a page: the record that goes beyond them is the last one.
-- How many records are kept, the newest id, and a list of id, data, id, data and so on.
local page, size, below, left = {}, 0, '(0-' .. ARGV[1], tonumber(ARGV[2])
while left > 0 and size < tonumber(ARGV[3]) do
  local each = redis.call('XRANGE', KEYS[1], below, '+', 'COUNT', 1)[1]
  if not each then break end
  table.insert(page, string.sub(each[1], 3))
  table.insert(page, each[2][2])
  below, size, left = '(' .. each[1], size + #each[2][2], left - 1
end
local newest = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
return {redis.call('XLEN', KEYS[1]), newest and string.sub(newest[1], 3) or '0', page}
