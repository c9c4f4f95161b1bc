-- Fragments are made when they are first needed, because making them all costs more than a decision.
--
-- RETURNS  need(name) -> what the fragment of that name returns

local made = {}

function need(name)
  local fragment = made[name]
  if not fragment then
    fragment = make(name)
    made[name] = fragment
  end
  return fragment
end
