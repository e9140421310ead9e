"""What the synthesised prompts are about: what openers are filled with."""

_TOPICS = """
bread baking|the water cycle|bicycle repair|the solar system|job interviews|small gardens
the French Revolution|honey bees|electric cars|learning the guitar|public libraries|volcanoes
personal budgets|machine learning|chess openings|the human heart|coral reefs|time zones|email etiquette
coffee roasting|the stock market|photosynthesis|remote work|Roman roads|healthy breakfasts|thunderstorms
dog training|renewable energy|the printing press|yoga|spreadsheets|city parks|penguins
the Great Wall of China|travel on a small budget|antibiotics|jazz|recycling|sleep habits|bridges
the moon landing|online privacy|houseplants|tea ceremonies|marathon training|dinosaurs|public speaking
inflation|the immune system|sailing|medieval castles|weather forecasts|vegetarian cooking|rivers
computer networks|the Olympic Games|note taking|glaciers|birdwatching|mountain hiking|sorting algorithms
museums|a lost letter|a robot that paints|two rival bakers|a lighthouse keeper|a talking cat
an unexpected inheritance|a small fishing village|the last train home|a school play|a new neighbour
climate change|the history of money|a customer complaint|a product launch|a team meeting|a birthday party
moving to a new city|a broken laptop|databases|unit tests|web servers|prime numbers|fractions|probability
geometry|percentages|unit conversion|string handling|file systems|recursion|linked lists|regular expressions
dates and times|the binary search|ancient Egypt|the Amazon rainforest|sharks|whales|the Nile|Mount Everest
Shakespeare|Mozart|Leonardo da Vinci|Marie Curie|Isaac Newton|the Second World War|the Industrial Revolution
the Renaissance|football|tennis|basketball|films of the nineties|science fiction novels|poetry
detective stories|folk music|street photography|oil painting|cloud storage|mobile phones|video games
social media|online shopping|airports|trains|hotels|restaurants|hospitals|nurses|teachers|farmers
fire fighters|architects|lawyers|carpenters|software developers|students|parents|stress|headaches|vitamins
running shoes|swimming|allergies|back pain|first aid|dental care|healthy snacks|rice dishes|soups|chocolate
cheese|salads|pasta|apple pie|olive oil|spices|fermented foods|elections|taxes|the United Nations|insurance
contracts|small businesses|marketing|customer service|negotiation|black holes|gravity|electricity|magnets
atoms|the periodic table|batteries|lasers|DNA|evolution|earthquakes|deserts|kitchen tools|winter coats
camping gear|board games|old clocks|wooden furniture|handmade soap|bicycles|umbrellas|Japan|Brazil|Kenya
Iceland|Canada|India|Italy|Egypt|Australia|Norway|Mexico|Vietnam|London|Paris|Tokyo|Berlin
"""

TOPICS: tuple[str, ...] = tuple(_TOPICS.strip().replace("\n", "|").split("|"))

_NAMES = """
Anna Ben Carla David Elena Farid Grace Hiro Ines Jack Kofi Lena Maria Nora Omar Priya Quinn Rosa Sam Tara
Uma Victor Wei Yusuf Zoe Tom Lucy Peter Sofia Daniel
"""
NAMES: tuple[str, ...] = tuple(_NAMES.split())

_THINGS = """
apples pencils books tickets cookies marbles eggs stickers bottles chairs coins flowers cakes boxes oranges
shirts candles stamps toys bags
"""
THINGS: tuple[str, ...] = tuple(_THINGS.split())

LANGUAGES: tuple[str, ...] = ("German", "French", "Spanish", "Italian", "Portuguese", "English")
PROGRAMMING: tuple[str, ...] = ("Python", "Python", "Python", "JavaScript", "C++", "Java", "SQL", "Bash", "Rust", "Go")
