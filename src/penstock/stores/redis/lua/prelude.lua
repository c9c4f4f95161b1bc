-- Time, numbers, and reading values that anybody may have damaged.
--
-- UNITS    instants and durations are whole microseconds, amounts whole units. All of them stay below 2^53, so that a
--          double is exact; what is larger is kept as (µs, part), which means µs + part/limit, 0 <= part < limit.
-- WIRE     whole numbers travel as packed 64-bit integers, and are stored as text made by `text`, never by tostring.

local call, pcall, pack, unpack_from = redis.call, redis.pcall, struct.pack, struct.unpack
local format, match, floor, fmod, max, min = string.format, string.match, math.floor, math.fmod, math.max, math.min

local EXACT = 9007199254740991
local MAX_USED = 8589934591 -- where counters stop: times 2^20 ticks this is still exact
local NOT_CHARGED = -1

local need -- see need.lua
local corrupt = 0 -- values that could not be read, and were replaced as if empty

local function text(number)
  return format('%.0f', number)
end

local function ceil_div(a, b)
  return floor((a + b - 1) / b)
end

-- (a * b + c) / m as quotient and remainder, exactly: a below 2^53, b to 2^33, c and m to 2^32.
local function muldiv(a, b, c, m)
  local product = a * b + c
  if product <= EXACT then
    local rest = fmod(product, m)
    return (product - rest) / m, rest
  end
  local over, high = fmod(a, m), floor(b / 65536)
  local upper = over * high
  local rest = fmod(upper, m)
  local lower = rest * 65536 + over * (b - high * 65536) + c
  local part = fmod(lower, m)
  return (a - over) / m * b + (upper - rest) / m * 65536 + (lower - part) / m, part
end

-- Forget a value that makes no sense. What is not the value's fault is an error of the call.
local function discard(key, reply)
  if reply and not match(reply.err, 'WRONGTYPE') then
    error(reply)
  end
  corrupt = corrupt + 1
  call('DEL', key)
end

-- What a command that reads says of `key`; nil if that is nothing, or the key holds another type.
local function query(command, key, ...)
  local reply = pcall(command, key, ...)
  if type(reply) == 'table' and reply.err then
    discard(key, reply)
    return nil
  end
  return reply or nil
end

-- Milliseconds after which a key may go that matters until `expiry`; in a batch often the same as just before.
local last_expiry, last_lifetime

local function lifetime(expiry)
  if expiry ~= last_expiry then
    last_expiry, last_lifetime = expiry, text(max(ceil_div(expiry - now, 1000), 1) + grace)
  end
  return last_lifetime
end
