"""MA-POCA: credit among teammates, also for those who die before the team is paid."""
