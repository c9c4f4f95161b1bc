-- Checks of a thousand users in turn, made before the first is sent.
local requests, sent = {}, 0

function init()
  for user = 1, 1000 do
    local body = string.format('{"descriptor":{"path":"/orders/1","method":"GET","user":"user-%d","ip":"192.0.2.7"}}', user)
    requests[user] = wrk.format("POST", "/v1/check", {["Host"] = "localhost", ["Content-Type"] = "application/json"}, body)
  end
end

function request()
  sent = sent % #requests + 1
  return requests[sent]
end
