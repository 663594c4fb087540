"""What Redis does in one step, in its own language: each script is atomic, and answers in plain text and numbers.

Keys, all below one prefix:

n         the last number that was given out; numbers only grow, even if all data are lost
k/<name>  a key: a hash of its value `v` and its version `n`, which is such a number
l/<name>  a log: a stream with the ids 0-1, 0-2 and so on; a record is one field, its token, with the data
t/<name>  the number of what was last published on a topic, kept for a moment; the channel has this name too

Something else under one of these names is as good as not there.
"""

import hashlib
from typing import NamedTuple

TRACE_SECONDS = 15  # how long a publication can be asked for
PAGE_BYTES = 4 * 1024 * 1024  # of one page of a log; the record that goes beyond it is the last one

Part = bytes | str | int

_COMMON = """
local function tick(key)
  local now = redis.call('TIME')
  local number = math.max(now[1] * 1000000 + now[2], (tonumber(redis.call('GET', key)) or 0) + 1)
  local text = string.format('%.0f', number)
  redis.call('SET', key, text)
  return text
end
local function only(key, kind)
  local found = redis.call('TYPE', key).ok
  if found ~= kind and found ~= 'none' then redis.call('UNLINK', key) end
  return found == kind
end
local function version(key)
  return only(key, 'hash') and string.match(redis.call('HGET', key, 'n') or '', '^%d+$') or '0'
end
"""


class Command(NamedTuple):
    """What the store is asked for. It may not know a script yet, and then wants its text."""

    words: tuple[Part, ...]
    text: bytes = b""
    is_long: bool = False  # its answer may be

    @property
    def with_text(self) -> "Command":
        return Command(("EVAL", self.text, *self.words[2:]), is_long=self.is_long)


class Script:
    """Something to do for some keys."""

    def __init__(self, text: str, *, long: bool = False) -> None:
        self._is_long = long
        self._text = (_COMMON + text).encode()
        self._name = hashlib.sha1(self._text, usedforsecurity=False).hexdigest()

    def on(self, *keys: bytes, to: tuple[Part, ...] = ()) -> Command:
        """The command that runs it; `to` are its arguments."""
        return Command(("EVALSHA", self._name, len(keys), *keys, *to), self._text, self._is_long)


# key, n | value, ttl, version that is expected or nothing -> the new version, or nothing if another one stands there
PUT = Script("""
local old = version(KEYS[1])
if ARGV[3] ~= '' and ARGV[3] ~= old then return false end
local new = tick(KEYS[2])
redis.call('HSET', KEYS[1], 'v', ARGV[1], 'n', new)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return new
""")

# key, n | summand, ttl -> the total; "" if that is too far; nothing if there is no number. A counter of Redis could go
# one further down than up, and must not
ADD = Script("""
local fresh = version(KEYS[1]) == '0'
local new = tick(KEYS[2])
if fresh then redis.call('HSET', KEYS[1], 'v', '0') end
local sum = redis.pcall('HINCRBY', KEYS[1], 'v', ARGV[1])
if type(sum) == 'table' then return string.find(sum.err, 'overflow', 1, true) and '' or false end
local total = redis.call('HGET', KEYS[1], 'v')
if total == '-9223372036854775808' then
  redis.call('HINCRBY', KEYS[1], 'v', string.sub(ARGV[1], 2))
  return ''
end
redis.call('HSET', KEYS[1], 'n', new)
if fresh then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return total
""")

# log, n, trace | channel, data, token, keep, ttl, id that is expected or nothing, "again" -> the record's id and the
# number of the wake-up, or nothing if another id is the newest. `again` looks for the token of a first try
APPEND = Script(f"""
if only(KEYS[1], 'stream') and ARGV[7] == 'again' then
  local below = '+'
  for _ = 1, 100 do
    local some = redis.call('XREVRANGE', KEYS[1], below, '-', 'COUNT', 10)
    for _, each in ipairs(some) do
      if each[2][1] == ARGV[3] then return {{each[1], '0'}} end
    end
    if #some < 10 then break end
    below = '(' .. some[10][1]
  end
end
if ARGV[6] ~= '' then
  local newest = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
  if (newest and newest[1] or '0-0') ~= ARGV[6] then return false end
end
local number = tick(KEYS[2])
local id = redis.call('XADD', KEYS[1], 'MAXLEN', '=', ARGV[4], '0-*', ARGV[3], ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[5])
redis.call('SET', KEYS[3], number, 'EX', {TRACE_SECONDS})
redis.call('PUBLISH', ARGV[1], number)
return {{id, number}}
""")

# log | after, limit -> how many are kept, the newest id, and a list of id, data, id, data …
READ = Script(
    f"""
if redis.call('TYPE', KEYS[1]).ok ~= 'stream' then return {{0, redis.call('TYPE', KEYS[1]).ok, {{}}}} end
local page, below, left, size, ended = {{}}, '(0-' .. ARGV[1], tonumber(ARGV[2]), 0, false
while left > 0 and size < {PAGE_BYTES} and not ended do
  local some = redis.call('XRANGE', KEYS[1], below, '+', 'COUNT', math.min(left, 10))
  ended = #some < math.min(left, 10)
  for _, each in ipairs(some) do
    if size < {PAGE_BYTES} then
      page[#page + 1] = each[1]
      page[#page + 1] = each[2][2]
      size = size + #each[2][2]
      left = left - 1
      below = '(' .. each[1]
    else
      ended = false
    end
  end
end
local last = ended and page[#page - 1] or redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1][1]
return {{redis.call('XLEN', KEYS[1]), last, page}}
""",
    long=True,
)

# n, trace | channel -> the number of the wake-up; a store that is full still wakes, with a number that says nothing
PUBLISH = Script(f"""
local fine, number = pcall(tick, KEYS[1])
if fine then
  redis.call('SET', KEYS[2], number, 'EX', {TRACE_SECONDS})
elseif string.find(type(number) == 'table' and number.err or tostring(number), 'OOM', 1, true) then
  number = '0'
else
  return type(number) == 'table' and number or redis.error_reply(tostring(number))
end
redis.call('PUBLISH', ARGV[1], number)
return number
""")

# n, traces -> a number above all earlier ones, and a list of what was last published on each topic
TRACES = Script("""
local number = tick(KEYS[1])
return {number, redis.call('MGET', unpack(KEYS, 2))}
""")
