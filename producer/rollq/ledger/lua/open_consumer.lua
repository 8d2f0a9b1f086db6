-- A process becomes the owner of a consumer's name and takes over its holds. A repeat with the same text gets the same
-- answer. The owner before it is fenced from now on, and woken to find out.
-- reads and writes  run count held:<purpose> holds:<purpose> waiting:<purpose> hold:<token> wake:<session>
--                   consumer:<purpose>:<name>
-- ARGV   purpose name text hold_s step (the last one that the trainer's checkpoint holds; -1: not told)
-- reply  ok owner next (step) next_in_ledger (as far as the ledger knew) filling (step of a batch that a filter
--        left incomplete; -1: none) steps (those that are held)
--        | acked step (one after the checkpoint's is acknowledged; nothing has changed)
local purpose, name, text, hold_s, step = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local key, holds = prefix .. 'consumer:' .. purpose .. ':' .. name, prefix .. 'holds:' .. purpose
local session, time, tokens = '@' .. purpose .. ':' .. name, now(), {}
local owner, opened, next_step, acked, filling =
  unpack(redis_call('HMGET', key, 'owner', 'opened', 'next', 'acked', 'filling'))
acked, next_step = number(acked or '-1', key), number(next_step, key)
if step >= 0 and step < acked then return { 'acked', 'step', acked } end
for _, token in ipairs(redis_call('ZRANGE', holds, 0, -1)) do
  if session_of(token) == session then tokens[#tokens + 1] = token end
end
table.sort(tokens, function(a, b) return step_of(a) < step_of(b) end)

allow_without_memory()
if string.match(owner or '', '#(.*)$') ~= text then
  opened = number(opened, key) + 1
  owner = opened .. '#' .. text
  redis_call('HSET', key, 'owner', owner, 'opened', opened, 'next', math.max(next_step, step + 1))
  redis_call('HDEL', prefix .. 'waiting:' .. purpose, session)
  local wake = prefix .. 'wake:' .. session
  redis_call('DEL', wake)
  redis_call('LPUSH', wake, 1)
  redis_call('EXPIRE', wake, constants.wake_s)
  for _, token in ipairs(tokens) do
    if step_of(token) > step then count('redelivered', redis_call('SCARD', prefix .. 'hold:' .. token)) end
  end
end
local steps = {}
for _, token in ipairs(tokens) do
  renew_hold(purpose, token, redis_call('SMEMBERS', prefix .. 'hold:' .. token), time, hold_s)
  steps[#steps + 1] = step_of(token)
end
return { 'ok', 'owner', owner, 'next', math.max(next_step, step + 1), 'next_in_ledger', next_step,
  'filling', number(filling or '-1', key), 'steps', steps }
