-- Operations that are more than a single ask: requests of several, dry runs, requests with an id, amendments.
--
-- KEYS     of the operation, by next_key(); ARGV[1] from its asks or charges on; see main.lua
-- RETURNS  for each verb a function of (position in ARGV[1], how many asks or charges, dry) that appends its reply to
--          `out` and returns the position after the operation

local PACKED_ANSWER = '<i8i8i8i8i8i8i8i8'
local STALE, STALE_UNITS = { 2, 0, 0, 0, 0, 0, NOT_CHARGED, 0 }, -EXACT - 1

return function(operations, counters, next_key, out)
  local function put(packed)
    out[#out + 1] = packed
  end

  -- The next asks or charges; whether the calendar of one of them does not reach to now, so that nothing may be done;
  -- and the position after them.
  local function next_asks(position, count)
    local asks, stale = {}, false
    for number = 1, count do
      local quota, cost, third, fourth
      quota, cost, third, fourth, position = unpack_from('<i8i8i8i8', operations, position)
      local counter = counters[quota]
      stale = stale or counter.stale
      asks[number] = { counter = counter, key = next_key(), cost = cost, third, fourth }
    end
    return asks, stale, position
  end

  local function acquire(position, count, dry)
    local asks, stale
    asks, stale, position = next_asks(position, count)
    if not stale then
      local requests = need('requests')
      local decide_or_peek = dry == 1 and requests.peek_all or requests.decide_all
      decide_or_peek(asks)
    end
    for _, ask in ipairs(asks) do
      put(pack(PACKED_ANSWER, unpack(stale and STALE or ask.answer)))
    end
    return position
  end

  local function once(position, count, cost)
    local serial, lasts, asks, stale
    serial, lasts, position = unpack_from('<i8i8', operations, position)
    local key = next_key()
    asks, stale, position = next_asks(position, count)
    local record = stale and { at = now, serial = serial } or need('once')(asks, key, serial, lasts, cost)
    put(pack('<i8i8', record.at, record.serial))
    for number = 1, count do
      put(pack(PACKED_ANSWER, unpack(stale and STALE or record.answers[number])))
    end
    for number = 1, count do
      put(pack('<i8', stale and 0 or record.costs[number]))
    end
    return position
  end

  local function amend(position, count)
    local verb, units, serial, lasts, charges, stale, each
    verb, units, serial, lasts, position = unpack_from('<i8i8i8i8', operations, position)
    local key = serial >= 0 and next_key()
    charges, stale, position = next_asks(position, count)
    if not stale then
      local amends = need('amends')
      each = key and amends.of_record(verb, charges, units, key, serial, lasts) or amends.all(verb, charges)
    end
    for number = 1, count do
      put(pack('<i8', stale and STALE_UNITS or each[number]))
    end
    return position
  end

  return { acquire, once, amend }
end
