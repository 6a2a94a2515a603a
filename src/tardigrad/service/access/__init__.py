"""Who may take part: enrolment, certificates, signed requests."""
