-- The groups of these jobs are trained on: all or none. What they were is dropped, that they were is kept.
-- reads and writes  held:<purpose> hold:<token> count group:<group> job:<job> journal:<job> journal:<job>#<attempt>
-- ARGV   token, then job ids
-- reply  ok | lost group
local token, groups, seen = ARGV[1], {}, {}
local hold = typed('hold:' .. token, 'set')
for i = 2, #ARGV do
  local name = group_name(ARGV[i])
  typed('job:' .. ARGV[i], 'hash')
  if not seen[name] then
    local group = read_group(name)
    if group.token ~= token or (group.state ~= 'held' and group.state ~= 'acked') then return { 'lost', name } end
    seen[name] = group
    if group.state == 'held' then
      sound('held:' .. group.purpose)
      groups[#groups + 1] = group
    end
  end
end
even_without_memory()
for _, group in ipairs(groups) do
  redis.call('HSET', group.key, 'state', 'acked')
  redis.call('ZREM', prefix .. 'held:' .. group.purpose, group.name)
  redis.call('SREM', hold, group.name)
  count('groups_acked')
end
for i = 2, #ARGV do
  local id, group = ARGV[i], seen[group_name(ARGV[i])]
  if group.state == 'held' then
    local job = prefix .. 'job:' .. id
    if redis.call('HSETNX', job, 'acked', token) == 1 then count('delivered') else count('duplicates') end
    for attempt in string.gmatch(redis.call('HGET', job, 'aside') or '', '%d+') do
      redis.call('DEL', prefix .. 'journal:' .. id .. '#' .. attempt)
    end
    redis.call('DEL', prefix .. 'journal:' .. id)
    redis.call('HDEL', job, 'body', 'aside')
  end
end
return { 'ok' }
