-- A job that has not ended is dead, of class cancelled; a worker that plays it is fenced.
-- reads and writes  run leased queued dead count open:<purpose> ready:<purpose> waiting:<purpose> wake:<token> job:<job>
--                   group:<group>
-- ARGV   id reason
-- reply  ok | unknown | state state (of a job that has ended)
local id, why = ARGV[2], ARGV[3]
local state, class = unpack(redis_call('HMGET', prefix .. 'job:' .. id, 'state', 'class'))
if not state then
  local ended = acked_state(parse(id))
  return ended and { 'state', 'state', ended } or { 'unknown' }
end
if state == 'dead' and class == 'cancelled' then return { 'ok' } end
if state ~= 'queued' and state ~= 'leased' then return { 'state', 'state', state } end
local group = group_of(id)
redis_call('ZREM', prefix .. 'queued', id)
fail_attempt(id, lease_of(id), group, 'cancelled', why, 'cancel', nil, now())
return { 'ok' }
