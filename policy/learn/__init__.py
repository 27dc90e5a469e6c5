"""Policy-gradient algorithms, one per file."""

TABLE = {
    "leave_one_out": "policy.learn.leave_one_out:LeaveOneOut",
}
