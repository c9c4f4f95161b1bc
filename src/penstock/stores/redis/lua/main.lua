-- Reads the operations, decides them in order at one instant, and answers all of them.
--
-- KEYS     of all operations in order: for each the key of its record, if it has one, then one key per ask or charge
-- ARGV[1]  the operations, as packed 64-bit integers:
--            acquire  1, asks, dry (0 or 1), then asks
--            once     2, asks, 0, serial, lasts, then asks       an acquire with an id; its record lasts that long
--            amend    3, charges, 0, verb, units, serial, lasts, then charges
--                        verb: 1 refund, 2 settle, 3 release, 4 renew; units: -1 is all; serial: -1 is no record
--            reset    4, 0, 0
--            an ask   quota, cost, advisory (0 or 1), mark       a charge   quota, cost, mark, part of the mark
-- ARGV[2]  the quotas they refer to, from 1 on, each as ten packed 64-bit integers: letter of the algorithm, whether to
--          count denied, penalty or 0, whether flat, then what the algorithm needs: limit, period, and four more
-- RETURNS  packed 64-bit integers: now, how many values were corrupt, then for each operation
--            acquire  8 numbers per ask: allowed (2: stale, nothing changed), remaining, retry_after, reset_after,
--                     more_after, delay, mark, part of the mark
--            once     decided at, serial, 8 numbers per ask, then the cost of each
--            amend    units that came back, per charge; -2^53 for all if stale
--            reset    nothing

local ACQUIRE, ONCE, AMEND = 1, 2, 3
local STALE, STALE_UNITS = { 2, 0, 0, 0, 0, 0, NOT_CHARGED, 0 }, -EXACT - 1
local PACKED_ANSWER, PACKED_ASK = '<i8i8i8i8i8i8i8i8', '<i8i8i8i8'

local keys, operations, counters, out = KEYS, ARGV[1], {}, {}
local position, key_number, parts = 1, 0, 0

local function bind(letter, count_denied, penalty, flat, ...)
  local plain = need(ALGORITHMS[string.char(letter)])(...)
  local counter = plain
  if count_denied == 1 then
    counter = need('options').counting_denied(plain)
  end
  if penalty > 0 then
    counter = need('options').penalised(counter, plain, penalty)
  end
  counter.flat = flat == 1
  return counter
end

local function put(packed)
  parts = parts + 1
  out[parts] = packed
end

local function next_key()
  key_number = key_number + 1
  return keys[key_number]
end

-- The next asks or charges; and whether the calendar of one of them does not reach to now, so that nothing may be done.
local function next_asks(count)
  local asks, stale = {}, false
  for number = 1, count do
    local quota, cost, third, fourth
    quota, cost, third, fourth, position = unpack_from(PACKED_ASK, operations, position)
    local counter = counters[quota]
    stale = stale or counter.stale
    asks[number] = { counter = counter, key = next_key(), cost = cost, third, fourth }
  end
  return asks, stale
end

-- A request of one ask that is no dry run is all there is to most calls.
local function acquire_one()
  local quota, cost, _, mark
  quota, cost, _, mark, position = unpack_from(PACKED_ASK, operations, position)
  local counter, key = counters[quota], next_key()
  if counter.stale then
    return STALE
  end
  local state = counter.load(key)
  local answer, after = counter.decide(state, cost, mark, key)
  if after ~= state then
    counter.save(key, after, 0)
  end
  return answer
end

local function acquire(count, dry)
  local asks, stale = next_asks(count)
  if not stale then
    local requests = need('requests')
    local decide_or_peek = dry == 1 and requests.peek_all or requests.decide_all
    decide_or_peek(asks)
  end
  for _, ask in ipairs(asks) do
    put(pack(PACKED_ANSWER, unpack(stale and STALE or ask.answer)))
  end
end

local function once(count)
  local serial, lasts
  serial, lasts, position = unpack_from('<i8i8', operations, position)
  local key = next_key()
  local asks, stale = next_asks(count)
  local record = stale and { at = now, serial = serial } or need('once')(asks, key, serial, lasts)
  put(pack('<i8i8', record.at, record.serial))
  for number = 1, count do
    put(pack(PACKED_ANSWER, unpack(stale and STALE or record.answers[number])))
  end
  for number = 1, count do
    put(pack('<i8', stale and 0 or record.costs[number]))
  end
end

local function amend(count)
  local verb, units, serial, lasts
  verb, units, serial, lasts, position = unpack_from('<i8i8i8i8', operations, position)
  local key = serial >= 0 and next_key()
  local charges, stale = next_asks(count)
  local each
  if not stale then
    local amends = need('amends')
    each = key and amends.of_record(verb, charges, units, key, serial, lasts) or amends.all(verb, charges)
  end
  for number = 1, count do
    put(pack('<i8', stale and STALE_UNITS or each[number]))
  end
end

for start = 1, #ARGV[2], 80 do
  counters[#counters + 1] = bind(unpack_from('<i8i8i8i8i8i8i8i8i8i8', ARGV[2], start))
end
while position <= #operations do
  local verb, count, dry
  verb, count, dry, position = unpack_from('<i8i8i8', operations, position)
  if verb == ACQUIRE and count == 1 and dry == 0 then
    put(pack(PACKED_ANSWER, unpack(acquire_one())))
  elseif verb == ACQUIRE then
    acquire(count, dry)
  elseif verb == ONCE then
    once(count)
  elseif verb == AMEND then
    amend(count)
  else
    call('DEL', next_key())
  end
end
return pack('<i8i8', now, corrupt) .. table.concat(out)
