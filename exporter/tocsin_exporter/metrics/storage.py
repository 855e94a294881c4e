"""Series of the storage that the node sees: mounts, NFS and Lustre clients, disks."""

from __future__ import annotations

from tocsin_exporter.metrics.family import NODE, Family, Kind, Tier

__all__ = ["FAMILIES"]

_C, _G = Kind.COUNTER, Kind.GAUGE
_MOUNT = (*NODE, "mount")
_OP = (*_MOUNT, "op")
_DISK = (*NODE, "disk")

FAMILIES = (
    Family("tocsin_storage_mount_info", _G, (*_MOUNT, "fstype", "kind", "source"), "", "Always 1: a file system that holds data, at the shortest path where it is mounted. kind: nfs, lustre, weka, beegfs, gpfs, ceph, smb, object, fuse, local, memory."),
    Family("tocsin_storage_responds", _G, _MOUNT, "", "1 when the mount told its free space when it was last asked, 0 while it has not answered for 3 seconds (a hung server or FUSE program). It is asked aside and keeps nothing else waiting."),
    Family("tocsin_storage_response_seconds", _G, _MOUNT, "seconds", "How long the mount took to tell its free space, or how long it has not answered by now."),
    Family("tocsin_storage_error_info", _G, (*_MOUNT, "error"), "", "Always 1, present while the mount answers with this error (ESTALE, EIO, ENOTCONN, ...)."),
    Family("tocsin_storage_read_only", _G, _MOUNT, "", "1 while the mount is read-only, as the kernel makes it after errors of the disk; 0 otherwise."),
    Family("tocsin_storage_size_bytes", _G, _MOUNT, "bytes", "Size of the file system."),
    Family("tocsin_storage_available_bytes", _G, _MOUNT, "bytes", "Space that users may still write."),
    Family("tocsin_storage_files", _G, _MOUNT, "", "Inodes of the file system; absent where it does not count them."),
    Family("tocsin_storage_files_free", _G, _MOUNT, "", "Inodes that users may still make."),
    Family("tocsin_storage_operations_total", _C, _OP, "", "Calls of this node's client to the servers of an NFS or Lustre mount: read, write, commit, metadata (all others). For NFS those that have ended."),
    Family("tocsin_storage_operation_seconds_total", _C, (*_OP, "phase"), "seconds", "Time of these calls. phase: queue (before they are sent), round_trip (network and server), all. Many in the queue beside a short round trip: the client's own limit of calls in flight."),
    Family("tocsin_storage_operation_errors_total", _C, _OP, "", "Calls that the server answered with an error, which includes harmless ones such as a file that is not there (NFS, Linux 5.3 and later)."),
    Family("tocsin_storage_retransmissions_total", _C, _OP, "", "Calls that were sent once more since no answer came (NFS)."),
    Family("tocsin_storage_timeouts_total", _C, _OP, "", "Calls whose retransmissions were all used up (major timeouts, NFS)."),
    Family("tocsin_storage_bytes_total", _C, (*_MOUNT, "path", "direction"), "bytes", "Bytes read and written. path: cached and direct (what programs asked for, through the page cache or past it) and server (what went over the network) of NFS, application of Lustre."),
    Family("tocsin_storage_connects_total", _C, _MOUNT, "", "Times that the client connected to the NFS server; each after the first is a connection that was lost or idle."),
    Family("tocsin_storage_backlog_total", _C, _MOUNT, "", "Sum over all calls of how many others waited for a free slot when each was sent (NFS): its rate over that of the calls is the mean queue.", Tier.DEEP),
    Family("tocsin_storage_nfs_operations_total", _C, _OP, "", "Calls of an NFS mount by the kernel's own name (READ, GETATTR, ...); present from a name's first call.", Tier.DEEP),
    Family("tocsin_storage_nfs_operation_seconds_total", _C, (*_OP, "phase"), "seconds", "Time of these calls: queue, round_trip, all.", Tier.DEEP),
    Family("tocsin_storage_targets", _G, (*_MOUNT, "kind", "state"), "", "Servers of a Lustre mount as the client sees them, by kind (osc: data, mdc: metadata) and state (FULL and IDLE are healthy; DISCONN, CONNECTING, REPLAY, EVICTED are not)."),
    Family("tocsin_storage_target_connected", _G, (*_MOUNT, "target"), "", "1 while the connection to one Lustre server is FULL or IDLE, 0 otherwise.", Tier.DEEP),
    Family("tocsin_storage_target_wait_seconds_total", _C, (*_MOUNT, "target"), "seconds", "Time that requests to one Lustre server took.", Tier.DEEP),
    Family("tocsin_storage_target_requests_total", _C, (*_MOUNT, "target"), "", "Requests to one Lustre server.", Tier.DEEP),
    Family("tocsin_storage_disk_operations_total", _C, (*_DISK, "op"), "", "Requests that a local disk has finished: read, write, flush.", Tier.FABRIC),
    Family("tocsin_storage_disk_operation_seconds_total", _C, (*_DISK, "op"), "seconds", "Time of these requests, in the queue and on the disk.", Tier.FABRIC),
    Family("tocsin_storage_disk_bytes_total", _C, (*_DISK, "direction"), "bytes", "Bytes read from and written to a local disk.", Tier.FABRIC),
    Family("tocsin_storage_disk_busy_seconds_total", _C, _DISK, "seconds", "Time in which a local disk had at least one request.", Tier.FABRIC),
    Family("tocsin_storage_disk_queue_seconds_total", _C, _DISK, "seconds", "Sum over all requests of their time in queue and disk: its rate is the mean queue length.", Tier.FABRIC),
    Family("tocsin_storage_disk_in_flight", _G, _DISK, "", "Requests of a local disk that have not finished.", Tier.FABRIC),
)
