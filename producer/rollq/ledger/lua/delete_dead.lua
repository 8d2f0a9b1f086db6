-- Delete what a dead job held (body, journals). It stays counted as dead. With the last dead member of a dropped group
-- the graded members go too, because the group can never come back.
-- reads and writes  run dead count group:<group> acked:<group> prompts:<group> job:<job> journal:<job>
--                   journal:<job>#<attempt>
-- ARGV   id
-- reply  ok | unknown | state state (of a job that is not dead)
local id, dead = ARGV[2], prefix .. 'dead'
local name, sample = parse(id)
local job, acked = prefix .. 'job:' .. id, acked_record(name)
local state, discarded, aside = unpack(redis_call('HMGET', job, 'state', 'discarded', 'aside'))
if discarded then return { 'ok' } end
if state and state ~= 'dead' then return { 'state', 'state', state } end
local listed = redis_call('ZREM', dead, id) == 1
if not state then
  local ended = acked_state(name, sample)
  if ended == 'dead' then return { 'ok' } end
  return ended and { 'state', 'state', ended } or { 'unknown' }
end

if acked then
  free_journals(id, aside, job)
  local letters = false
  for _, of in ipairs(acked.dead) do
    letters = letters or redis_call('EXISTS', prefix .. 'job:' .. member(name, of)) == 1
  end
  if not letters then
    redis_call('DEL', prefix .. 'prompts:' .. name)
    let_expire(prefix .. 'acked:' .. name)
  end
else
  local group = read_group(name)
  free(id)
  redis_call('HSET', job, 'discarded', 1)
  group.discarded = redis_call('HINCRBY', group.key, 'discarded', 1)
  free_graded_members(group)
end
if listed then count('discarded') end
return { 'ok' }
