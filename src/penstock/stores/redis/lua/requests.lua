-- Acquire: decide on all asks of a request, then write all.
--
-- KEYS     one counter per ask
-- ASK      {counter, key, cost, [1] advisory (0 or 1), [2] mark}; see main.lua. Of a grant `least` and `most`, between
--          which the cost is as much as fits, or the least if that does not
-- RETURNS  `ask.answer`: allowed, remaining, retry_after, reset_after, more_after, delay, mark, part of the mark

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
    if ask.most then
      ask.cost = max(ask.least, min(ask.most, ask.counter.peek(ask.state, 0)[2]))
    end
    ask.answer, ask.after = ask.counter.decide(ask.state, ask.cost, ask[2], ask.key)
    passes = passes and (ask.answer[1] == 1 or ask[1] == 1)
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

return { peek_all = peek_all, decide_all = decide_all }
