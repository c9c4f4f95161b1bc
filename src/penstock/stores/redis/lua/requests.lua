-- Acquire: decide on all asks of a request, then write all.
--
-- KEYS     one counter per ask
-- ASK      {counter, key, cost, advisory (0 or 1), mark}; see main.lua
-- RETURNS  `ask.answer`: allowed, remaining, retry_after, reset_after, more_after, delay, mark, part of the mark

local STALE = { 2, 0, 0, 0, 0, 0, NOT_CHARGED, 0 }

-- Whether somebody's calendar does not reach to now; then nothing may be decided.
local function is_stale(asks)
  for _, ask in ipairs(asks) do
    if ask.counter.stale then
      return true
    end
  end
  return false
end

local function answer_stale(asks)
  for _, ask in ipairs(asks) do
    ask.answer = STALE
  end
end

local function peek_all(asks)
  for _, ask in ipairs(asks) do
    ask.answer = ask.counter.peek(ask.counter.load(ask.key), ask.cost)
  end
end

-- Charges all or none; returns whether the request passes. What a refusal leaves behind is kept in any case.
local function decide_all(asks)
  local passes = true
  for _, ask in ipairs(asks) do
    ask.state = ask.counter.load(ask.key)
    ask.answer, ask.after = ask.counter.decide(ask.state, ask.cost, ask.mark, ask.key)
    passes = passes and (ask.answer[1] == 1 or ask.advisory == 1)
  end
  for _, ask in ipairs(asks) do
    if ask.answer[1] == 1 and not passes then
      ask.answer = ask.counter.peek(ask.state, ask.cost)
    elseif ask.after ~= ask.state then
      ask.counter.save(ask.key, ask.after, 0)
    end
  end
  return passes
end

-- Whether the places that came with a record still are, so that it may be given again.
local function is_still_held(record, asks)
  for number, ask in ipairs(asks) do
    if ask.counter.holds then
      local state, answer = ask.counter.load(ask.key), record.answers[number]
      if not state or not ask.counter.renew(state, answer[7], answer[8]) then
        return false
      end
    end
  end
  return true
end

-- Decide on a request with an id, unless it was admitted before: then answer as then. Returns the record, kept or not.
local function decide_once(asks, key, serial, lasts)
  local record = read_record(key, #asks)
  if record and record.expires_at > now and is_still_held(record, asks) then
    return record
  end
  local passes = decide_all(asks)
  record = { serial = serial, expires_at = now + lasts, at = now, cost = 0, settled = 0, answers = {}, costs = {} }
  for number, ask in ipairs(asks) do
    record.answers[number], record.costs[number] = ask.answer, ask.cost
    record.cost = max(record.cost, ask.cost)
  end
  if passes then
    write_record(key, record)
  end
  return record
end
