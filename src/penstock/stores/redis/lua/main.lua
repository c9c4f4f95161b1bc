-- Reads the operations, decides them in order at one instant, and answers all of them.
--
-- KEYS     of all operations in order: for each the key of its record, if it has one, then one key per ask or charge
-- ARGV[1]  the operations, as packed 64-bit integers:
--            acquire  1, asks, dry (0 or 1), then asks
--            once     2, asks, serial, lasts, then asks          an acquire with an id; its record lasts that long
--            amend    3, charges, verb, units, serial, lasts, then charges
--                        verb: 1 refund, 2 settle, 3 release, 4 renew; units: -1 is all; serial: -1 is no record
--            reset    4
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
local STALE_UNITS = -EXACT - 1
local PACKED_ANSWER, PACKED_ASK = '<i8i8i8i8i8i8i8i8', '<i8i8i8i8'

local operations, counters, out = ARGV[1], {}, {}
local position, key_number = 1, 0

local function bind(letter, count_denied, penalty, flat, ...)
  local plain = algorithms[string.char(letter)](...)
  local counter = count_denied == 1 and counting_denied(plain) or plain
  counter = penalty > 0 and penalised(counter, plain, penalty) or counter
  counter.flat = flat == 1
  return counter
end

local function next_key()
  key_number = key_number + 1
  return KEYS[key_number]
end

local function put(number)
  out[#out + 1] = pack('<i8', number)
end

local function put_answer(answer)
  out[#out + 1] = pack(PACKED_ANSWER, unpack(answer))
end

local function next_asks(count)
  local asks = {}
  for number = 1, count do
    local quota, cost, advisory, mark
    quota, cost, advisory, mark, position = unpack_from(PACKED_ASK, operations, position)
    asks[number] = { counter = counters[quota], key = next_key(), cost = cost, advisory = advisory, mark = mark }
  end
  return asks
end

local function acquire()
  local count, dry
  count, dry, position = unpack_from('<i8i8', operations, position)
  local asks = next_asks(count)
  if is_stale(asks) then
    answer_stale(asks)
  elseif dry == 1 then
    peek_all(asks)
  else
    decide_all(asks)
  end
  for number = 1, count do
    put_answer(asks[number].answer)
  end
end

local function once()
  local count, serial, lasts
  count, serial, lasts, position = unpack_from('<i8i8i8', operations, position)
  local key = next_key()
  local asks = next_asks(count)
  local record = { at = now, serial = serial, answers = {}, costs = {} }
  if is_stale(asks) then
    for number = 1, count do
      record.answers[number], record.costs[number] = STALE, 0
    end
  else
    record = decide_once(asks, key, serial, lasts)
  end
  put(record.at)
  put(record.serial)
  for number = 1, count do
    put_answer(record.answers[number])
  end
  for number = 1, count do
    put(record.costs[number])
  end
end

local function amend()
  local count, verb, units, serial, lasts
  count, verb, units, serial, lasts, position = unpack_from('<i8i8i8i8i8', operations, position)
  local key, charges, each = serial >= 0 and next_key(), {}, {}
  for number = 1, count do
    local quota, cost, mark, part
    quota, cost, mark, part, position = unpack_from(PACKED_ASK, operations, position)
    charges[number] = { counter = counters[quota], key = next_key(), cost = cost, mark = mark, part = part }
  end
  if is_stale(charges) then
    for number = 1, count do
      each[number] = STALE_UNITS
    end
  elseif key then
    each = amend_record(verb, charges, units, key, serial, lasts)
  else
    each = amend_all(verb, charges)
  end
  for number = 1, count do
    put(each[number])
  end
end

for start = 1, #ARGV[2], 80 do
  counters[#counters + 1] = bind(unpack_from('<i8i8i8i8i8i8i8i8i8i8', ARGV[2], start))
end
while position <= #operations do
  local verb
  verb, position = unpack_from('<i8', operations, position)
  if verb == ACQUIRE then
    acquire()
  elseif verb == ONCE then
    once()
  elseif verb == AMEND then
    amend()
  else
    call('DEL', next_key())
  end
end
return pack('<i8i8', now, corrupt) .. table.concat(out)
