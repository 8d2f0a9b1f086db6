-- Delete what a dead job held (body, journals). It stays counted as dead. With the last dead member of a dropped group
-- the graded members go too, because the group can never come back.
-- reads and writes  run dead count group:<group> acked:<group> prompts:<group> job:<job> journal:<job>
--                   journal:<job>#<attempt>
-- ARGV   id
-- reply  ok | unknown | state (of a job that is not dead)
local id, dead = ARGV[2], typed('dead', 'zset')
local name, sample = parse(id)
local job, acked = typed('job:' .. id, 'hash'), acked_record(name)
local state, discarded, aside = unpack(redis.call('HMGET', job, 'state', 'discarded', 'aside'))
if discarded then return { 'ok' } end
if state and state ~= 'dead' then return { 'state', state } end
local listed = redis.call('ZREM', dead, id) == 1
if not state then
  local ended = acked_state(name, sample)
  if ended == 'dead' then return { 'ok' } end
  return { ended and 'state' or 'unknown', ended or '' }
end

if acked then
  free_journals(id, aside, job)
  local letters = false
  for _, of in ipairs(acked.dead) do
    letters = letters or redis.call('EXISTS', prefix .. 'job:' .. member(name, of)) == 1
  end
  if not letters then
    redis.call('DEL', prefix .. 'prompts:' .. name)
    let_expire(prefix .. 'acked:' .. name)
  end
else
  free(id)
  redis.call('HSET', job, 'discarded', 1)
  local well, group = pcall(read_group, name) -- one that cannot be read has nothing to free
  if well then
    group.discarded = redis.call('HINCRBY', group.key, 'discarded', 1)
    free_graded_members(group)
  end
end
if listed then count('discarded') end
return { 'ok' }
