#!/bin/sh
# Makes what docker-compose.yml needs and keeps out of images and environments: one file for each secret, and .env from
# .env.example where there is none. What is there is kept; only redis-users.acl is written again, so run it after each
# upgrade too. To change a password, delete its file.
#
#   deploy/secrets.sh [FOLDER]     # else the ROLLQ_SECRETS of .env, else ./secrets; relative to rollq's folder
#
# For a Redis of your own, write its addresses into worker-url, producer-url, trainer-url, reader-url and flower-url
# (docs/deploy.md).
set -eu
cd "$(dirname "$0")/.."
named=$(sed -n 's/^ROLLQ_SECRETS=//p' .env 2>/dev/null || true)
folder=${1:-${named:-./secrets}}
if [ -n "$named" ] && [ "$folder" != "$named" ]; then
  echo "secrets.sh: .env says ROLLQ_SECRETS=$named, not $folder: change that line or leave the folder out" >&2
  exit 1
fi
mkdir -p "$folder" && chmod 700 "$folder" # the files are readable, because containers read them as users of their own

put() { # NAME CONTENT
  if [ ! -s "$folder/$1" ]; then
    printf '%s\n' "$2" >"$folder/$1"
    chmod 644 "$folder/$1"
  fi
}
# ROLLQ_*_PASSWORD and FLOWER_BASIC_AUTH, of letters and digits.
eval "$(deploy/redis/passwords.sh)"
put worker-url "redis://worker:$ROLLQ_WORKER_PASSWORD@redis:6379/0"
put producer-url "redis://producer:$ROLLQ_PRODUCER_PASSWORD@redis:6379/0"
put trainer-url "redis://trainer:$ROLLQ_TRAINER_PASSWORD@redis:6379/0"
put reader-url "redis://reader:$ROLLQ_READER_PASSWORD@redis:6379/0"
put flower-url "redis://flower:$ROLLQ_FLOWER_PASSWORD@redis:6379/0"
put admin-url "redis://admin:$ROLLQ_ADMIN_PASSWORD@redis:6379/0"
put flower-login "$FLOWER_BASIC_AUTH"
put grafana-password "$(od -An -N24 -tx1 /dev/urandom | tr -d ' \n')"

password() { # USER: of its file
  sed -n "s|^redis://$1:\([^@]*\)@redis:6379/0\$|\1|p" "$folder/$1-url"
}
if [ -n "$(password worker)" ]; then # the Redis of compose
  ROLLQ_WORKER_PASSWORD=$(password worker) ROLLQ_PRODUCER_PASSWORD=$(password producer) \
    ROLLQ_TRAINER_PASSWORD=$(password trainer) ROLLQ_READER_PASSWORD=$(password reader) \
    ROLLQ_FLOWER_PASSWORD=$(password flower) ROLLQ_ADMIN_PASSWORD=$(password admin) \
    deploy/redis/users.sh >"$folder/redis-users.acl.new" || { rm -f "$folder/redis-users.acl.new"; exit 1; }
  mv -f "$folder/redis-users.acl.new" "$folder/redis-users.acl" # an empty one would let everybody in
fi
[ -e "$folder/redis-users.acl" ] || : >"$folder/redis-users.acl"
chmod 644 "$folder/redis-users.acl"
if [ ! -e .env ]; then
  sed "s|^ROLLQ_SECRETS=.*|ROLLQ_SECRETS=$folder|" .env.example >.env
fi
echo "$folder holds the secrets. Flower: user and password are in $folder/flower-login"
