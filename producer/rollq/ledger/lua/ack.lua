-- Groups of one hold are over: the trainer has trained on them, or skips them for a reason. All or none. What they
-- stored is deleted, but for a small record. A group whose hold ran out counts, too, while no other consumer has it.
-- A filter's skip leaves the batch incomplete until it is filled (take.lua).
-- reads and writes  run ready:<purpose> held:<purpose> open:<purpose> holds:<purpose> waiting:<purpose> count
--                   hold:<token> wake:<session> consumer:<purpose>:<name> group:<group> acked:<group> prompts:<group>
--                   job:<job> journal:<job> journal:<job>#<attempt> stale
-- ARGV   token owner reason ('': trained on; stale: to be replaced) filling (1: a filter skips) groups (none: all of
--        the hold)
-- reply  ok | lost [group] | fenced
local token, owner, why, filling, names, groups, now_over = ARGV[2], ARGV[3], ARGV[4], ARGV[5] == '1', {}, {}, {}
local meta, used = prefix .. 'run', 0
local hold, stale = prefix .. 'hold:' .. token, prefix .. 'stale'
for i = 6, #ARGV do names[#names + 1] = ARGV[i] end
if taken_over(token, owner) then return { 'fenced' } end
local consumer, step, is_whole = consumer_of(token), step_of(token), #names == 0
if is_whole then names = redis_call('SMEMBERS', hold) end
if #names == 0 then
  local again = consumer and redis_call('HGET', consumer, 'whole') == tostring(step)
  return { again and 'ok' or 'lost' }
end
for _, name in ipairs(names) do
  if redis_call('EXISTS', prefix .. 'group:' .. name) == 0 then
    local record = acked_record(name)
    if not record or record.token ~= token then return { 'lost', 'group', name } end
  else
    local group = read_group(name)
    local mine = group.state == 'held' and group.token == token
    if not mine and group.state ~= 'ready' then return { 'lost', 'group', name } end
    if not now_over[name] then groups[#groups + 1] = group end
    now_over[name] = true
  end
end

allow_without_memory()
for _, group in ipairs(groups) do
  redis_call('ZREM', prefix .. 'held:' .. group.purpose, group.name)
  redis_call('ZREM', prefix .. 'ready:' .. group.purpose, group.name)
  redis_call('SREM', hold, group.name)
  shrink(group, token)
  if why == 'stale' then redis_call('SADD', stale, group.name) end
  if group.purpose == 'train' and not filling then used = used + 1 end
  count(why == '' and 'groups_acked' or 'groups_skipped')
  count(why == '' and 'delivered' or 'skipped', group.done)
  if why ~= '' then count('skipped:' .. why) end
end
if consumer and why == '' and step >= number(redis_call('HGET', consumer, 'acked'), consumer) then
  redis_call('HSET', consumer, 'acked', step)
end
if consumer and filling then redis_call('HSET', consumer, 'filling', step) end
if consumer and is_whole then redis_call('HSET', consumer, 'whole', step) end
if #groups > 0 then
  if redis_call('EXISTS', hold) == 0 then end_hold(groups[1].purpose, token) end
  wake_consumers(groups[1].purpose)
  wake_producers()
end
if used > 0 and redis_call('HEXISTS', meta, 'batch') == 1 then
  redis_call('HINCRBY', meta, 'trained', used)
  -- The trainer may go on without the skipped group, or ask for another (take.lua).
  if why ~= '' then redis_call('HINCRBY', meta, 'lent', used) end
end
return { 'ok' }
