"""Chain public ids: the digest of each stream is computed from them, and the streams it changes begin a new epoch."""

from alembic import op

revision = "0009"
down_revision = "0008"

# A function of this session only: nothing of it stays.
PUBLIC_ID = """
CREATE FUNCTION pg_temp.public_id(prefix text, id uuid) RETURNS text LANGUAGE sql AS $$
    SELECT prefix || '_' || string_agg(
        substr('0123456789abcdefghjkmnpqrstvwxyz', substr(bits, 5 * place + 1, 5)::bit(5)::integer + 1, 1),
        '' ORDER BY place)
    FROM (SELECT '00' || ('x' || replace(id::text, '-', ''))::bit(128)::text AS bits) AS number,
        generate_series(0, 25) AS place
$$
"""
CHAIN = """
DO $$
DECLARE
    entry record;
    current uuid;
    chained bytea;
BEGIN
    FOR entry IN
        SELECT stream_id, seq, pg_temp.public_id('event', id) AS public_id FROM events
        UNION ALL
        SELECT stream_id, seq, pg_temp.public_id('activity', id) FROM activities
        ORDER BY stream_id, seq
    LOOP
        IF entry.stream_id IS DISTINCT FROM current THEN
            UPDATE streams SET digest = chained WHERE id = current;
            current := entry.stream_id;
            chained := decode(repeat('00', 32), 'hex');
        END IF;
        chained := sha256(chained || convert_to(entry.public_id, 'UTF8'));
    END LOOP;
    UPDATE streams SET digest = chained WHERE id = current;
    UPDATE streams SET epoch = substr(replace(gen_random_uuid()::text, '-', ''), 1, 12) WHERE last_seq > 0;
END
$$
"""


def upgrade() -> None:
    op.execute(PUBLIC_ID)
    op.execute(CHAIN)
    op.execute("DROP FUNCTION pg_temp.public_id(text, uuid)")
