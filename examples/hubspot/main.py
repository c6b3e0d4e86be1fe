"""HubSpot: saves contacts and companies as records, and has an action that creates a contact."""

import companies
import contacts

__all__ = ["companies", "contacts"]
