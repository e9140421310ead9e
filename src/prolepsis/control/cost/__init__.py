"""From device seconds to money: prices, what requests cost, what speculation saved and a forecast."""
