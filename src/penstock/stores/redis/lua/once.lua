-- Acquire with an id: an admitted request is remembered; asked again it is answered again and charges nothing. Also
-- grants, which may have no id.
--
-- KEYS     the record, if there is an id; one counter per ask
-- ASK      as requests.lua
-- RETURNS  the record, as records.lua; kept if the request passed

local records, requests = need('records'), need('requests')

-- Whether the places that came with a record still are, so that it may be given again.
local function is_still_held(record, asks)
  for number, ask in ipairs(asks) do
    local answer = record.answers[number]
    if ask.counter.holds and answer[7] ~= NOT_CHARGED then
      local state = ask.counter.load(ask.key)
      if not state or not ask.counter.renew(state, answer[7], answer[8]) then
        return false
      end
    end
  end
  return true
end

return function(asks, key, serial, lasts, cost)
  local record = key and records.read(key, #asks)
  if record and record.expires_at > now and is_still_held(record, asks) then
    if cost > 0 then
      record.repeats = record.repeats + 1
      records.write(key, record)
    end
    return record
  end
  local passes = requests.decide_all(asks)
  record = { serial = serial, expires_at = now + lasts, at = now, cost = cost, settled = 0, repeats = 0 }
  record.answers, record.costs = {}, {}
  for number, ask in ipairs(asks) do
    record.answers[number], record.costs[number] = ask.answer, ask.cost
    record.cost = max(record.cost, ask.cost)
  end
  if passes and key then
    records.write(key, record)
  end
  return record
end
