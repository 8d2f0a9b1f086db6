-- The producer pins the tokenizer and the chat template of the run's episodes; else the first claim does.
-- reads and writes  run
-- ARGV   tokenizer_hash template_hash
-- reply  the run's tokenizer_hash and template_hash
local meta = typed('run', 'hash')
if redis.call('HEXISTS', meta, 'tokenizer_hash') == 0 then
  redis.call('HSET', meta, 'tokenizer_hash', ARGV[2], 'template_hash', ARGV[3])
end
return redis.call('HMGET', meta, 'tokenizer_hash', 'template_hash')
