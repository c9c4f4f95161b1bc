-- Amend: change what a receipt was charged, or charge what was admitted elsewhere.
--
-- KEYS     one counter per charge, and the record of the request if it had an id
-- CHARGE   {counter, key, cost, [1] mark, [2] part of the mark}; see main.lua
-- RETURNS  units that came back to each counter; below zero what was charged on top

local records = need('records')
local REFUND, SETTLE, RENEW, REPORT, UNDO = 1, 2, 4, 5, 6

-- Charge `cost` into the window that holds the mark, an instant, as far as it still counts there.
local function report(counter, key, cost, mark)
  local charged, after = counter.report(counter.load(key), cost, mark, key)
  if charged > 0 then
    counter.save(key, after, 0)
  end
  return -charged
end

local function amend_one(verb, charge, cost)
  local counter = charge.counter
  if verb == REPORT then
    return report(counter, charge.key, cost, charge[1])
  end
  local state = counter.load(charge.key)
  if not state or cost == 0 or (verb ~= REFUND and not counter.holds) then
    return 0
  end
  if verb == RENEW then
    local renewed = counter.renew(state, charge[1], charge[2])
    if renewed then
      counter.save(charge.key, renewed, 0)
    end
    return renewed and 1 or 0
  end
  local back, after = counter.refund(state, cost, charge[1], charge[2])
  counter.save(charge.key, after, 0)
  return back
end

local function amend_all(verb, charges)
  local each = {}
  for number, charge in ipairs(charges) do
    each[number] = amend_one(verb, charge, charge.cost)
  end
  return each
end

-- Give `units` of the request's cost back. Flat counters stay charged until the last of them is given back.
local function refund_part(charges, units, last)
  local each, cost = {}, 0
  for _, charge in ipairs(charges) do
    cost = max(cost, charge.cost)
  end
  for number, charge in ipairs(charges) do
    local part = charge.cost
    if units < cost or not last then
      part = charge.counter.flat and (last and 1 or 0) or min(charge.cost, units)
    end
    each[number] = amend_one(REFUND, charge, part)
  end
  return each
end

-- Give `back` units back, or charge them if fewer than none, wherever the cost of the request was charged.
local function settle(charges, back)
  local each = {}
  for number, charge in ipairs(charges) do
    local counter, key = charge.counter, charge.key
    each[number] = 0
    if back > 0 and not counter.flat then
      each[number] = amend_one(REFUND, charge, min(back, charge.cost))
    elseif back < 0 and not counter.flat then
      counter.save(key, counter.force(counter.load(key), -back), 0)
      each[number] = back
    end
  end
  return each
end

-- What can be given back of a request that is settled for `units`. What was charged on top of a bucket stays charged:
-- there may have been no room for all of it.
local function refundable(charges, units, cost)
  for _, charge in ipairs(charges) do
    if charge.counter.drains and not charge.counter.flat then
      return min(units, cost)
    end
  end
  return units
end

-- A place in a queue is given back by the first amendment or not at all: once a part of it was, another place
-- may end where it ended.
local function forget_queues(charges)
  for _, charge in ipairs(charges) do
    if charge.counter.queues then
      charge.cost = 0
    end
  end
end

-- Amend a request that had an id: what was given back or settled is noted, so it cannot be done twice.
local function amend_record(verb, charges, units, key, serial, lasts)
  local record = records.read(key)
  if not record or record.expires_at <= now or record.serial ~= serial or (verb == SETTLE and record.settled == 1) then
    local each = {} -- given back or settled before, too long ago, or another request by now
    for number = 1, #charges do
      each[number] = 0
    end
    return each
  end
  if verb == UNDO then
    if record.repeats > 0 then -- others count on the charge
      record.repeats = record.repeats - 1
      records.write(key, record)
      return refund_part(charges, 0, false)
    end
    verb, units = REFUND, -1
  end
  if record.settled == 1 or record.cost < max(unpack(record.costs)) then
    forget_queues(charges)
  end
  local each
  if verb == SETTLE then
    each = settle(charges, record.cost - units)
    record.cost, record.settled = refundable(charges, units, record.cost), 1
  elseif verb == REFUND then
    units = units < 0 and record.cost or min(units, record.cost)
    each = refund_part(charges, units, units == record.cost)
    record.cost = record.cost - units
    if record.cost == 0 then
      store('DEL', key)
      return each
    end
  else
    each = amend_all(verb, charges)
    if verb == RENEW then
      record.expires_at = max(record.expires_at, now + lasts)
    end
  end
  records.write(key, record)
  return each
end

return { all = amend_all, of_record = amend_record }
