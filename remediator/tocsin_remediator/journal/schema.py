"""
Tables of the journal, for SQLite and PostgreSQL alike.

Uniqueness while open is a nullable `open_key`: it is unique, and NULL once the row is closed
(both databases let NULLs repeat).
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
)

# Raised with every change of the tables. A program refuses a journal with a higher one.
VERSION: Final = 1

metadata = MetaData()

settings = Table(
    "settings",
    metadata,
    Column("key", String(64), primary_key=True),
    Column("value", Text, nullable=False),
)

inbox = Table(
    "inbox",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("received_at", Double, nullable=False),
    Column("external_url", Text, nullable=False),
    Column("status", String(16), nullable=False),
    Column("labels", JSON, nullable=False),
    Column("annotations", JSON, nullable=False),
    Column("starts_at", String(64), nullable=False),
    Column("fingerprint", String(128), nullable=False),
    # NULL until the worker has dealt with it; then what became of it, for good.
    Column("result", Text),
    Column("handled_at", Double),
    Index("inbox_waiting", "result", "id"),
)

cases = Table(
    "cases",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("subject", Text, nullable=False),
    Column("open_key", String(512), unique=True),
    Column("opened_at", Double, nullable=False),
    Column("closed_at", Double),
)

incidents = Table(
    "incidents",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("case_id", Integer, ForeignKey("cases.id"), nullable=False),
    Column("family", String(64), nullable=False),
    Column("target", Text, nullable=False),
    Column("open_key", String(1024), unique=True),
    Column("subject", Text, nullable=False),
    Column("state", String(32), nullable=False),
    Column("version", Integer, nullable=False),
    Column("labels", JSON, nullable=False),
    Column("annotations", JSON, nullable=False),
    Column("level", String(16), nullable=False),
    Column("runbook_digest", String(64), nullable=False),
    Column("plan", JSON(none_as_null=True)),
    Column("plan_digest", String(64), nullable=False),
    Column("facts", JSON, nullable=False),
    Column("opened_at", Double, nullable=False),
    Column("state_since", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    Column("deadline_at", Double),
    Column("next_at", Double, nullable=False),
    Column("close_code", String(32), nullable=False),
    Column("reason", Text, nullable=False),
    Column("program", String(32), nullable=False),
    Index("incidents_due", "state", "next_at"),
    Index("incidents_case", "case_id"),
)

events = Table(
    "events",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("incident_id", Integer, ForeignKey("incidents.id"), nullable=False),
    Column("at", Double, nullable=False),
    Column("kind", String(32), nullable=False),
    Column("message", Text, nullable=False),
    Column("data", JSON, nullable=False),
    Index("events_incident", "incident_id", "id"),
)

approvals = Table(
    "approvals",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("incident_id", Integer, ForeignKey("incidents.id"), nullable=False),
    Column("plan_digest", String(64), nullable=False),
    Column("decision", String(16), nullable=False),
    Column("who", String(128), nullable=False),
    Column("at", Double, nullable=False),
    Column("reason", Text, nullable=False),
)

runs = Table(
    "runs",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("incident_id", Integer, ForeignKey("incidents.id"), nullable=False),
    Column("family", String(64), nullable=False),
    Column("target", Text, nullable=False),
    Column("plan_digest", String(64), nullable=False),
    # The attempt is counted by this row, which is written before anything is done.
    Column("started_at", Double, nullable=False),
    Column("ended_at", Double),
    Column("outcome", String(32), nullable=False),
    Index("runs_target", "family", "target", "started_at"),
)

steps = Table(
    "steps",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("run_id", Integer, ForeignKey("runs.id"), nullable=False),
    Column("incident_id", Integer, ForeignKey("incidents.id"), nullable=False),
    Column("position", Integer, nullable=False),
    Column("step", String(64), nullable=False),
    Column("action", String(64), nullable=False),
    Column("args", JSON, nullable=False),
    Column("request_id", String(128), nullable=False, unique=True),
    Column("status", String(16), nullable=False),
    Column("intent_at", Double, nullable=False),
    Column("outcome_at", Double),
    Column("output", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("pid_start", String(64), nullable=False),
    Column("rollback", Boolean, nullable=False),
    Index("steps_run", "run_id", "position"),
)

casefiles = Table(
    "casefiles",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("case_id", Integer, ForeignKey("cases.id"), nullable=False),
    Column("incident_id", Integer, ForeignKey("incidents.id"), nullable=False),
    Column("at", Double, nullable=False),
    Column("moment", String(32), nullable=False),
    Column("body", JSON, nullable=False),
    Index("casefiles_incident", "incident_id", "id"),
)

shadow = Table(
    "shadow",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("incident_id", Integer, ForeignKey("incidents.id"), nullable=False),
    Column("runbook", String(64), nullable=False),
    Column("digest", String(64), nullable=False),
    Column("at", Double, nullable=False),
    Column("plan", JSON, nullable=False),
    Column("why", Text, nullable=False),
    Index("shadow_runbook", "runbook", "id"),
)

promotions = Table(
    "promotions",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("runbook", String(64), nullable=False),
    Column("level", String(16), nullable=False),
    Column("digest", String(64), nullable=False),
    Column("who", String(128), nullable=False),
    Column("at", Double, nullable=False),
    Index("promotions_runbook", "runbook", "id"),
)
