"""What we choose: pure policies, numbers in and a Decision out."""
