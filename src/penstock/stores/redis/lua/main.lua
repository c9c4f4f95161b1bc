-- Reads the operations, decides them in order at one instant, and answers all of them.
--
-- KEYS     of all operations in order: for each the key of its record, if it has one, then one key per ask or charge
-- ARGV[1]  the operations, as packed 64-bit integers:
--            plain    0, quota, cost                             a lone ask of a counter that is text, no options
--            acquire  1, asks, dry (0 or 1), then asks
--            once     2, asks, cost, serial, lasts, then asks    an acquire with an id; its record lasts that long;
--                        cost: of the whole request, if these are not all of its asks, else 0
--            amend    3, charges, 0, verb, units, serial, lasts, then charges
--                        verb: 1 refund, 2 settle, 3 release, 4 renew, 5 report (mark: when it happened elsewhere),
--                        6 undo: refund unless a repeat of the request counts on the charge;
--                        units: -1 is all; serial: -1 is no record
--            reset    4, 0, 0
--            grant    5, least, most, serial, lasts, then an ask     as many units as fit; serial: -1 is no record
--            an ask   quota, cost, advisory (0 or 1), mark       a charge   quota, cost, mark, part of the mark
-- ARGV[2]  the quotas they refer to, from 1 on, each as ten packed 64-bit integers: letter of the algorithm, whether to
--          count denied, penalty or 0, whether flat, then what the algorithm needs: limit, period, and four more
-- RETURNS  packed 64-bit integers: now, how many values were corrupt, then for each operation
--            plain    8 numbers: allowed (2: stale, nothing changed), remaining, retry_after, reset_after, more_after,
--                     delay, mark, part of the mark
--            acquire  8 numbers per ask
--            once     decided at, serial, 8 numbers per ask, then the cost of each; grant: the same
--            amend    units that came back, per charge; -2^53 for all if stale
--            reset    nothing
--
-- Making a function takes as long as calling it a few times, and a lone call makes all that it uses. So those fragments
-- that decide on counters which are text stand in the loop over the quotas, where only what is asked for is made; and
-- all that is not a plain ask stands at the end, where nothing of it is made unless there is one.

local PLAIN, PACKED_ANSWER = 0, '<i8i8i8i8i8i8i8i8'
local keys, operations, quotas = KEYS, ARGV[1], ARGV[2]
local counters, out = {}, {}
local position, last, key_number = 1, #operations, 0

for start = 1, #quotas, 80 do
  local letter, _, _, _, limit, period, a, b, c, d = unpack_from('<i8i8i8i8i8i8i8i8i8i8', quotas, start)
  local counter = false -- as texts.lua describes it, unless the algorithm keeps a set
  --> texts
  counters[#counters + 1] = counter
end

while position <= last do
  local verb, quota, cost, behind = unpack_from('<i8i8i8', operations, position)
  if verb ~= PLAIN then
    break
  end
  position, key_number = behind, key_number + 1
  local counter, key = counters[quota], keys[key_number]
  local x, y, z, shut_until = load(counter, key)
  local to_x, to_y, to_z, allowed, remaining, retry, reset, more, delay, mark, part = counter.decide(cost, x, y, z)
  if to_x ~= x or to_y ~= y or to_z ~= z then
    local value, expiry = counter.write(to_x, to_y, to_z)
    local reply
    if to_x == x and counter.windowed and not shut_until then -- expires with its window, as it is
      reply = pcall('SET', key, value, 'KEEPTTL')
    else
      reply = pcall('SET', key, value, 'PX', lifetime(expiry))
    end
    if reply.err then
      fail(reply)
    end
    wrote = true
  end
  if last == 24 then -- a single ask, as most calls are
    return pack('<i8i8i8i8i8i8i8i8i8i8', now, corrupt, allowed, remaining, retry, reset, more, delay, mark, part)
  end
  out[#out + 1] = pack(PACKED_ANSWER, allowed, remaining, retry, reset, more, delay, mark, part)
end

if position <= last then
  local done, raised = try(function()
    --> operations
  end)
  if not done then
    fail(raised)
  end
end
return pack('<i8i8', now, corrupt) .. table.concat(out)
