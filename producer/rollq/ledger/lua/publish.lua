-- The engines serve the policy of a training step now. Waiting producers look again: there may be room. A step that is
-- not above the published one is that of a restored checkpoint: the groups that were trained after it do not count.
-- `number` is that of an earlier publication which is said again, because Redis may have lost it; it changes nothing
-- when the ledger knows it, or a later one.
-- reads and writes  run versions held:train open:train group:<group> wake:<session>
-- ARGV   step version token number (0: a new publication)
-- reply  ok number (of publications) | name step (which has that version's name)
local meta, versions = typed('run', 'hash'), typed('versions', 'hash')
local step, version, token, number = tonumber(ARGV[2]), ARGV[3], ARGV[4], tonumber(ARGV[5])
local was, published, last, batch, trained =
  unpack(redis.call('HMGET', meta, 'step', 'published', 'publication', 'batch', 'trained'))
typed('held:train', 'zset')
was, published, trained = whole(was, 0, MOST), stored_number(published), stored_number(trained)
if last == token or (number > 0 and published >= number) then return { 'ok', published } end
local of_name = whole(redis.call('HGET', versions, version), 0, MOST)
if of_name and of_name ~= step then return { 'name', of_name } end

-- After a step back, the weights of that step may sample tokens of groups that began at a later one.
local later = {}
if batch and was and step < was then
  for _, name in ipairs(checked('open:train', 'zset', 'ZRANGE', 0, -1)) do
    local started = whole(field('group:' .. name, 'started'), 0, MOST)
    if started and started > step then later[#later + 1] = prefix .. 'group:' .. name end
  end
end

allow_without_memory() -- the trainer acknowledges, which makes room, only after this
redis.call('HSET', meta, 'step', step, 'version', version, 'published', published + 1, 'publication', token)
redis.call('HSET', versions, version, step)
redis.call('HDEL', meta, 'lent')
for _, group in ipairs(later) do redis.call('HSET', group, 'started', step) end
if batch then
  batch = stored_number(batch)
  if was and step <= was then trained = math.min(trained, step * batch) end
  set_trained(trained, step, batch)
end
wake_producers()
return { 'ok', published + 1 }
