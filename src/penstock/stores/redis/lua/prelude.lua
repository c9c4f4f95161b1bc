-- Time, numbers, and counters that are one string: the algorithm's own text, and behind a "!" until when the key is shut
-- out, if it is. Stored values may have been damaged by other clients.
--
-- UNITS    instants and durations are whole microseconds, amounts whole units. All of them stay below 2^53, so that a
--          double is exact, and so are %, floor(a / b) and ceil(a / b); what is larger is kept as (µs, part), which
--          means µs + part/limit, 0 <= part < limit.
-- WIRE     whole numbers travel as packed 64-bit integers, and are stored as text made by `text`, never by tostring.

local call, pcall, try, pack, unpack_from = redis.call, redis.pcall, pcall, struct.pack, struct.unpack
local format, match, floor, ceil, max, min = string.format, string.match, math.floor, math.ceil, math.max, math.min

local EXACT = 9007199254740991
local MAX_USED = 8589934591 -- where counters stop: times 2^20 ticks this is still exact
local NOT_CHARGED = -1

local wrote = false -- whether anything that is charged, or given back, may have been written
local corrupt = 0 -- values that could not be read, and were replaced as if empty

local function text(number)
  return format('%.0f', number)
end

-- Raise an error of a command, which says so if nothing was charged before.
local function fail(raised)
  local told = type(raised) == 'table' and raised.err or raised
  error({ err = (wrote or match(told, '^UNCHARGED')) and told or 'UNCHARGED ' .. told })
end

-- Forget a value that makes no sense. What is not the value's fault is an error of the call.
local function discard(key, reply)
  if reply and not match(reply.err, 'WRONGTYPE') then
    fail(reply)
  end
  corrupt = corrupt + 1
  call('DEL', key)
end

-- The state that `key` holds, up to three numbers, nil if that is nothing; and until when it is shut out, if it is.
local function load(counter, key)
  local value = pcall('GET', key)
  if not value then
    return nil
  elseif value.err then -- of text that is nil
    return discard(key, value)
  end
  local x, y, z = counter.read(value)
  if x then
    return x, y, z
  end
  local own, digits = match(value, '^([%x ]*)!(%d+)$')
  local shut_until = tonumber(digits)
  if own and own ~= '' then
    x, y, z = counter.read(own)
  end
  if not shut_until or shut_until > EXACT or (own ~= '' and not x) then
    return discard(key)
  end
  return x, y, z, shut_until
end

-- Milliseconds after which a key may go that matters until `expiry`; in a batch often the same as just before.
local last_expiry, last_lifetime

local function lifetime(expiry)
  if expiry ~= last_expiry then
    last_expiry, last_lifetime = expiry, text(max(ceil((expiry - now) / 1000), 1) + grace)
  end
  return last_lifetime
end
