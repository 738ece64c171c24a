-- Where the time of each process and device went, from an export of Nsight Systems by SQL alone, ns.
-- Kernels whose name begins with nccl communicate, all others compute; copies and memsets are left out.
WITH
kernels AS (
  SELECT k.globalPid AS pid, k.deviceId AS device, k.start AS s, k.end AS e,
         coalesce(n.value, '') LIKE 'nccl%' AS comm
  FROM CUPTI_ACTIVITY_KIND_KERNEL k LEFT JOIN StringIds n ON n.id = k.shortName
),
-- Merged intervals, by running maximum: a new island begins where a start lies behind all ends before it.
marked AS (
  SELECT *, s > coalesce(max(e) OVER (PARTITION BY pid, device, comm ORDER BY s, e
                                      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), -1) AS begins
  FROM kernels
),
numbered AS (
  SELECT *, sum(begins) OVER (PARTITION BY pid, device, comm ORDER BY s, e) AS island FROM marked
),
islands AS (
  SELECT pid, device, comm, min(s) AS s, max(e) AS e FROM numbered GROUP BY pid, device, comm, island
),
shared AS (
  SELECT a.pid, a.device, sum(min(a.e, b.e) - max(a.s, b.s)) AS hidden
  FROM islands a JOIN islands b ON b.pid = a.pid AND b.device = a.device AND b.comm = 0 AND a.comm = 1
                               AND a.s < b.e AND b.s < a.e
  GROUP BY a.pid, a.device
)
SELECT i.device,
       max(i.e) - min(i.s) AS span,
       sum((i.e - i.s) * (i.comm = 0)) AS compute,
       sum((i.e - i.s) * (i.comm = 1)) AS comm,
       sum((i.e - i.s) * (i.comm = 1)) - coalesce(h.hidden, 0) AS exposed,
       round(1.0 * coalesce(h.hidden, 0) / nullif(sum((i.e - i.s) * (i.comm = 1)), 0), 3) AS overlap_ratio
FROM islands i LEFT JOIN shared h ON h.pid = i.pid AND h.device = i.device
GROUP BY i.pid, i.device ORDER BY i.device;
