"""All that stands behind the commands: built on the core, and on the field's own libraries."""
