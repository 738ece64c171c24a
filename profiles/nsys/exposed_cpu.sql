-- The same without a device, ns: from the ranges of overlap in an export that holds no kernel, by SQL alone.
-- Of compute the caller's waits ("stall", "settle") are taken off, for they lie inside the ranges of modules.
WITH
said AS (
  SELECT e.globalTid >> 24 AS pid, e.start AS s, e.end AS e, coalesce(e.int64Value, 0) AS bytes,
         coalesce(e.text, n.value) || ' ' AS name
  FROM NVTX_EVENTS e LEFT JOIN StringIds n ON n.id = e.textId
  WHERE e.eventType = 59 AND e.end IS NOT NULL AND e.domainId IN (
    SELECT d.domainId FROM NVTX_EVENTS d LEFT JOIN StringIds n ON n.id = d.textId
    WHERE d.eventType = 75 AND d.globalTid >> 24 = e.globalTid >> 24 AND coalesce(d.text, n.value) = 'overlap')
),
ranges AS (
  SELECT pid, s, e, substr(name, 1, instr(name, ' ') - 1) AS phase, bytes FROM said
),
borders AS (
  SELECT pid, s AS at FROM ranges UNION SELECT pid, e FROM ranges
),
pieces AS (
  SELECT pid, at AS s, lead(at) OVER (PARTITION BY pid ORDER BY at) AS e FROM borders
),
flagged AS (
  SELECT p.pid, p.e - p.s AS ns,
         max(r.phase IN ('gather', 'reduce', 'replicate') AND r.bytes > 0) AS comm,
         max(r.phase IN ('forward', 'backward', 'pack', 'norm', 'update')) > max(r.phase IN ('stall', 'settle')) AS busy
  FROM pieces p JOIN ranges r ON r.pid = p.pid AND r.s <= p.s AND r.e >= p.e
  WHERE p.e IS NOT NULL GROUP BY p.pid, p.s
),
spans AS (
  SELECT pid, max(e) - min(s) AS span FROM ranges GROUP BY pid
)
SELECT f.pid & 0xFFFFFF AS process,
       spans.span,
       sum(ns * busy) AS compute,
       sum(ns * comm) AS comm,
       sum(ns * (comm AND NOT busy)) AS exposed,
       round(1.0 * sum(ns * (comm AND busy)) / nullif(sum(ns * comm), 0), 3) AS overlap_ratio
FROM flagged f JOIN spans ON spans.pid = f.pid
GROUP BY f.pid ORDER BY f.pid;
