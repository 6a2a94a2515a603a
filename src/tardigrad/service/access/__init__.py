"""Which clients may take part: keys and enrolment, certificates, signed requests."""
