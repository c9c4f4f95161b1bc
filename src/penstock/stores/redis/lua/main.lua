-- Reads the operations, decides them in order at one instant, and answers all of them.
--
-- KEYS     of all operations in order: for each the key of its record, if it has one, then one key per ask or charge
-- ARGV[1]  the operations, as packed 64-bit integers:
--            acquire  1, asks, dry (0 or 1), then asks
--            once     2, asks, cost, serial, lasts, then asks    an acquire with an id; its record lasts that long;
--                        cost: of the whole request, if these are not all of its asks, else 0
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

local ACQUIRE, RESET = 1, 4
local PACKED_ANSWER = '<i8i8i8i8i8i8i8i8'
local keys, operations, quotas = KEYS, ARGV[1], ARGV[2]
local counters, out = {}, {}
local position, key_number, others = 1, 0, nil

for start = 1, #quotas, 80 do
  local letter, count_denied, penalty, flat, limit, period, a, b, c, d = unpack_from('<i8i8i8i8i8i8i8i8i8i8', quotas, start)
  local counter = need(string.char(letter))(limit, period, a, b, c, d)
  if count_denied == 1 or penalty > 0 then
    counter = need('options')(counter, count_denied == 1, penalty)
  end
  counter.flat = flat == 1
  counters[#counters + 1] = counter
end

local function next_key()
  key_number = key_number + 1
  return keys[key_number]
end

while position <= #operations do
  local verb, count, dry
  verb, count, dry, position = unpack_from('<i8i8i8', operations, position)
  if verb == ACQUIRE and count == 1 and dry == 0 then -- most calls are nothing else
    local quota, cost, _, mark
    quota, cost, _, mark, position = unpack_from('<i8i8i8i8', operations, position)
    local counter, key, answer = counters[quota], next_key(), nil
    if counter.stale then
      answer = { 2, 0, 0, 0, 0, 0, NOT_CHARGED, 0 }
    else
      local state, after = counter.load(key), nil
      answer, after = counter.decide(state, cost, mark, key)
      if after ~= state then
        counter.save(key, after, 0)
      end
    end
    out[#out + 1] = pack(PACKED_ANSWER, unpack(answer))
  elseif verb == RESET then
    call('DEL', next_key())
  else
    others = others or need('operations')(operations, counters, next_key, out)
    position = others[verb](position, count, dry)
  end
end
return pack('<i8i8', now, corrupt) .. table.concat(out)
